"""Time zones that people name: places of the world and UTC, not what this machine happens to be set to."""

from zoneinfo import ZoneInfo

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
