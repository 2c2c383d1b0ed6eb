"""Dates and times as lists of integers."""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Any

__all__ = ["pack_datetime", "pack_delta", "pack_time", "unpack_datetime", "unpack_delta", "unpack_time"]


def pack_delta(value: datetime.timedelta) -> list[Any]:
    """Return a duration as days, seconds and microseconds."""
    return [value.days, value.seconds, value.microseconds]


def unpack_delta(parts: Any) -> datetime.timedelta:
    """Invert `pack_delta`."""
    days, seconds, microseconds = parts
    return datetime.timedelta(days, seconds, microseconds)


def _pack_zone(zone: datetime.tzinfo | None) -> Any:
    """Return a time zone in plain data; raise `LookupError` for one that has none."""
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        return [*pack_delta(offset), None if name == datetime.timezone(offset).tzname(None) else name]
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return zone.key
    raise LookupError


def _unpack_zone(parts: Any) -> datetime.tzinfo | None:
    if parts is None:
        return None
    if type(parts) is str:
        return zoneinfo.ZoneInfo(parts)
    offset = unpack_delta(parts[:3])
    if parts[3] is not None:
        return datetime.timezone(offset, parts[3])
    return datetime.timezone(offset) if offset else datetime.UTC


def pack_datetime(value: datetime.datetime) -> list[Any] | None:
    """Return a date and time in plain data; ``None`` if its time zone has no such form."""
    try:
        zone = _pack_zone(value.tzinfo)
    except LookupError:
        return None
    return [
        *(value.year, value.month, value.day),
        *(value.hour, value.minute, value.second, value.microsecond),
        value.fold,
        zone,
    ]


def unpack_datetime(parts: Any) -> datetime.datetime:
    """Invert `pack_datetime`."""
    *numbers, fold, zone = parts
    year, month, day, hour, minute, second, microsecond = numbers
    return datetime.datetime(year, month, day, hour, minute, second, microsecond, tzinfo=_unpack_zone(zone), fold=fold)


def pack_time(value: datetime.time) -> list[Any] | None:
    """Return a time of day in plain data; ``None`` if its time zone has no such form."""
    try:
        zone = _pack_zone(value.tzinfo)
    except LookupError:
        return None
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, zone]


def unpack_time(parts: Any) -> datetime.time:
    """Invert `pack_time`."""
    *numbers, fold, zone = parts
    hour, minute, second, microsecond = numbers
    return datetime.time(hour, minute, second, microsecond, tzinfo=_unpack_zone(zone), fold=fold)
