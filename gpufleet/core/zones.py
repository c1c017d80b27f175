"""Time zones that people name: places of the world and UTC, not what this machine happens to be set to."""

from functools import cache
from zoneinfo import ZoneInfo, available_timezones

LONGEST = 60
# Files beside the zones: the machine's own zone, and rules without a place.
NO_PLACE = frozenset({"localtime", "posixrules", "Factory", "leapseconds", "tzdata.zi"})


def zone_named(name: str) -> ZoneInfo:
    """Raises ValueError for what is not a zone."""
    if len(name) > LONGEST or not name.isprintable() or name in NO_PLACE or name.startswith(("posix/", "right/")):
        raise ValueError(name)
    try:
        return ZoneInfo(name)
    except (OSError, KeyError) as fault:
        raise ValueError(name) from fault


@cache
def zones_offered() -> tuple[str, ...]:
    """What a field for a zone offers: UTC and the places of the world. They are looked up once, as all of the zone files are opened for it."""
    return ("UTC", *sorted(zone for zone in available_timezones() if "/" in zone and not zone.startswith(("Etc/", "posix", "right"))))


class NoTimes(ValueError):
    """A rule or a zone that says no times (any more), in words for people."""


def zone_fault(name: str) -> str:
    """What is wrong with the name of a zone; empty: nothing."""
    try:
        zone_meant(name)
    except NoTimes as fault:
        return str(fault)
    return ""


def zone_meant(name: str) -> ZoneInfo:
    """The zone, or in words why there is none."""
    try:
        return zone_named(name)
    except ValueError as fault:
        raise NoTimes("Name a time zone such as Europe/Berlin or UTC.") from fault
