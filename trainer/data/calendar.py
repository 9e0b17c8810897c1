"""Calendar arithmetic on whole numbers, the same for NumPy arrays and TensorFlow tensors. Adopters: leave.

Only + - * and // (floor division) are used, so the encoder and the serving graph share these lines. The
formulas are those of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms" (2013): years begin in
March, so that the leap day comes last, and are counted in eras of 400 years (146,097 days).
"""

from __future__ import annotations

from typing import Any

MICROSECONDS = 1_000_000
DAY = 86_400 * MICROSECONDS  # microseconds

# Cycles: part -> length, in the unit of `part_value`.
PERIODS = {"hour": 86_400.0, "weekday": 7.0, "day": 31.0, "month": 12.0, "dayofyear": 366.0}


def days_from_civil(year: Any, month: Any, day: Any) -> Any:
    """Returns days since 1970-01-01 of a date (int64 arrays or tensors of one shape)."""
    # `(month + 9) // 12` is 0 for January and February, 1 from March on.
    after_february = (month + 9) // 12
    year = year - 1 + after_february
    era = year // 400
    year_of_era = year - era * 400
    month_from_march = month + 9 - 12 * after_february
    day_of_year = (153 * month_from_march + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468


def civil_from_days(days: Any) -> tuple[Any, Any, Any]:
    """Returns year, month (1-12) and day (1-31) of days since 1970-01-01 (int64)."""
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    after_december = month_from_march // 10
    return year_of_era + era * 400 + after_december, month_from_march + 3 - 12 * after_december, day


def part_value(part: str, micros: Any) -> Any:
    """Returns where in its cycle a moment lies: int64, from 0 to below `PERIODS[part]`.

    Args:
        part: hour (seconds since midnight: the whole time of day), weekday (Monday is 0), day (of the
            month), month, dayofyear; the last three from 0.
        micros: Microseconds since 1970 UTC, int64.
    """
    days = micros // DAY
    if part == "hour":
        return (micros - days * DAY) // MICROSECONDS
    if part == "weekday":
        return days + 3 - (days + 3) // 7 * 7  # 1970-01-01 was a Thursday
    year, month, day = civil_from_days(days)
    if part == "day":
        return day - 1
    if part == "month":
        return month - 1
    return days - days_from_civil(year, month * 0 + 1, month * 0 + 1)


def days_in_month(year: Any, month: Any) -> Any:
    """Returns 28 to 31 (int64): the day before the first of the next month."""
    next_year = year + month // 12
    next_month = month - month // 12 * 12 + 1
    one = month * 0 + 1
    return days_from_civil(next_year, next_month, one) - days_from_civil(year, month, one)
