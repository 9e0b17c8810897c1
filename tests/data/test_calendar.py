"""Calendar arithmetic against Python's datetime."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from trainer.data import calendar

FIRST = datetime.date(1, 1, 1)
EPOCH = datetime.date(1970, 1, 1)
DATES = [FIRST + datetime.timedelta(days=place) for place in range(0, 3_652_059, 61)]
DAYS = np.array([(date - EPOCH).days for date in DATES])


def test_days_and_dates_are_those_of_python() -> None:
    year, month, day = calendar.civil_from_days(DAYS)
    assert [(date.year, date.month, date.day) for date in DATES] == list(
        zip(year.tolist(), month.tolist(), day.tolist(), strict=True)
    )
    assert (calendar.days_from_civil(year, month, day) == DAYS).all()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("hour", lambda date: 13 * 3_600 + 62),
        ("weekday", lambda date: date.weekday()),
        ("day", lambda date: date.day - 1),
        ("month", lambda date: date.month - 1),
        ("dayofyear", lambda date: date.timetuple().tm_yday - 1),
    ],
)
def test_parts_are_those_of_python_and_stay_in_their_period(part: str, value: object) -> None:
    micros = DAYS * calendar.DAY + (13 * 3_600 + 62) * calendar.MICROSECONDS + 999_999
    found = calendar.part_value(part, micros)
    assert found.tolist() == [value(date) for date in DATES]  # type: ignore[operator]
    assert 0 <= found.min() <= found.max() < calendar.PERIODS[part]


def test_months_have_their_days() -> None:
    months = np.arange(1, 13)
    assert calendar.days_in_month(np.full(12, 2023), months).tolist() == [
        *(31, 28, 31, 30, 31, 30),
        *(31, 31, 30, 31, 30, 31),
    ]
    years = np.array([2024, 1900, 2000, 2100])
    assert calendar.days_in_month(years, np.full(4, 2)).tolist() == [29, 28, 29, 28]
