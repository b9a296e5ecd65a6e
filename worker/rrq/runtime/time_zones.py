"""Converts between the clocks of a time zone and moments in UTC. Pure.

Twice a year this is not one to one: an hour that the clocks skip never occurs, and an hour that they repeat occurs twice.
"""

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from rrq.runtime.suggestions import suggest

__all__ = ["find_gap_end", "find_moments", "parse_time_zone", "read_clock"]

_MINUTE: Final = timedelta(minutes=1)


def parse_time_zone(name: str) -> ZoneInfo | None:
    """Return the zone with this IANA name; None for UTC, which needs no database of time zones.

    Raises ValueError for an unknown name and on a machine without a database.
    """
    if name == "UTC":
        return None
    # 'localtime' depends on the machine, and zones below 'right/' count leap seconds.
    if name != "localtime" and not name.startswith("right/"):
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    known = available_timezones()
    if not known:
        raise ValueError(
            f"The time zone {name!r} cannot be read: this machine has no database of time zones. "
            "Install the package tzdata, with the package manager of the system or with pip."
        )
    raise ValueError(
        f"There is no time zone {name!r}. Write an IANA name such as 'Europe/Berlin'.{suggest(name, known)}"
    )


def read_clock(moment: datetime, zone: ZoneInfo) -> tuple[datetime, timedelta]:
    """Return the time on the clocks at a moment (naive), and the length of the repeated period around it, mostly zero."""
    local = moment.astimezone(zone)
    repeated = _offset(local.replace(fold=0)) - _offset(local.replace(fold=1))
    return local.replace(tzinfo=None, fold=0), repeated


def find_moments(wall: datetime, zone: ZoneInfo) -> tuple[datetime, ...]:
    """Return the moments (in UTC) at which clocks show ``wall``: one, two if it is repeated, none if it is skipped."""
    by_old_offset, by_new_offset = _read_both(wall, zone)
    if by_old_offset == by_new_offset:
        return (by_old_offset,)
    return (by_old_offset, by_new_offset) if by_old_offset < by_new_offset else ()


def find_gap_end(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment (in UTC) at which clocks skip ``wall``."""
    late, early = _read_both(wall, zone)
    old_offset = _offset(early.astimezone(zone))
    minutes = range(int((late - early) / _MINUTE) + 1)

    def has_changed(minute: int) -> bool:
        return _offset((early + minute * _MINUTE).astimezone(zone)) != old_offset

    return early + bisect_left(minutes, True, key=has_changed) * _MINUTE


def _read_both(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the moments of ``wall`` by the offset before a change of the clocks, and by the offset after it."""
    old, new = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return old, new


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta(0)
