"""Errors that this machine's network ports have counted, and the speeds at which they run, from the kernel's own files."""

from collections.abc import Iterator
from pathlib import Path

from dashboards.health.links import GIGABIT_BYTES

MEGABIT_BYTES = GIGABIT_BYTES // 1000
NET, INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
OF_NET = ("rx_errors", "tx_errors")
OF_PORT = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors")


def nic_errors_read(*, net: Path = NET, infiniband: Path = INFINIBAND) -> tuple[int, int] | None:
    """All adapters together, and how many counters that are; None where none tells. Devices without hardware, such as bridges, do not count."""
    told = [int(text) for file in _counters(net, infiniband) if (text := _text(file)).isdigit()]
    return (sum(told), len(told)) if told else None


def nic_speeds_read(*, net: Path = NET, infiniband: Path = INFINIBAND) -> dict[str, float]:
    """Bytes a second by port; of one that is down nothing. Devices without hardware, such as bridges, are left out."""
    found: dict[str, float] = {}
    for device in sorted(net.glob("*/device")):
        speed = _text(device.parent / "speed")  # megabits a second; not told, or negative, of a port that is down
        if speed.isdigit():
            found[device.parent.name] = int(speed) * MEGABIT_BYTES
        elif _text(device.parent / "operstate") == "down":
            found[device.parent.name] = 0
    for rate in sorted(infiniband.glob("*/ports/*/rate")):
        gigabits, unit, _ = _text(rate).partition(" Gb/sec")  # such as 400 Gb/sec (4X NDR)
        if unit and gigabits.replace(".", "", 1).isdigit():
            name = rate.parts[-4]
            found[name] = max(float(gigabits) * GIGABIT_BYTES, found.get(name, 0.0))
    return found


def _counters(net: Path, infiniband: Path) -> Iterator[Path]:
    for device in sorted(net.glob("*/device")):
        yield from (device.parent / "statistics" / name for name in OF_NET)
    for port in sorted(infiniband.glob("*/ports/*/counters")):
        yield from (port / name for name in OF_PORT)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""  # this adapter has no such counter
