"""Dates and times in text, as ISO 8601 and its common variants. Adopters: leave."""

from __future__ import annotations

import datetime


def parse_time(text: str) -> datetime.datetime:
    """Parses ISO 8601 (also "2024-05", "20240501", and " UTC" at the end, as BigQuery exports it) into UTC.

    Raises:
        ValueError: the text is no date or time.
    """
    value = text.strip()
    if value.endswith((" UTC", " utc")):
        value = value[:-4] + "+00:00"
    elif value.endswith(("Z", "z")):
        value = value[:-1] + "+00:00"
    if len(value) == 4 and value.isdigit():
        value += "-01-01"
    elif len(value) == 7 and value[4] == "-":
        value += "-01"
    elif len(value) == 8 and value.isdigit():
        value = f"{value[:4]}-{value[4:6]}-{value[6:]}"
    if len(value) > 11:
        value = _fraction(value)
    moment = datetime.datetime.fromisoformat(value)
    if moment.tzinfo is None:
        return moment.replace(tzinfo=datetime.timezone.utc)
    return moment.astimezone(datetime.timezone.utc)


def _fraction(value: str) -> str:
    """Cuts or pads the fraction of a second to 6 digits and completes the zone, as Python 3.10 wants them."""
    day, time = value[:11], value[11:]
    zone_at = max(time.find("+"), time.find("-"))
    clock, zone = (time, "") if zone_at < 0 else (time[:zone_at], time[zone_at:])
    clock = clock.rstrip()
    whole, point, fraction = clock.partition(".")
    if point:
        clock = f"{whole}.{fraction[:6]:0<6}"
    if len(zone) == 3:
        zone += ":00"
    elif len(zone) == 5 and ":" not in zone:
        zone = f"{zone[:3]}:{zone[3:]}"
    return day + clock + zone
