"""Errors that this machine's network ports have counted, and the speeds at which they run, from the kernel's own files."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from dashboards.health.links import GIGABIT_BYTES, LEAST_SEGMENTS

MEGABIT_BYTES = GIGABIT_BYTES // 1000
SNMP = Path("/proc/net/snmp")
LOOKS_KEPT, SHORTEST_LOOK = 300, 30  # seconds
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


class Retransmissions:
    """The part of TCP segments that this machine has sent again in the last five minutes, from looks at the kernel's counters. It keeps them."""

    def __init__(self, snmp: Path = SNMP) -> None:
        self._snmp = snmp
        self._looks: deque[tuple[float, int, int]] = deque()

    def read(self, *, at: float) -> float | None:
        """`at` in seconds. None where too little was sent to tell, or was looked at for too short a time."""
        counters = _tcp(_text(self._snmp))
        if counters is None:
            return None
        again, sent = counters
        if self._looks and (again < self._looks[-1][1] or sent < self._looks[-1][2]):
            self._looks.clear()  # they began anew
        self._looks.append((at, again, sent))
        while self._looks[0][0] < at - LOOKS_KEPT:
            self._looks.popleft()
        began, again_then, sent_then = self._looks[0]
        seconds = at - began
        if seconds < SHORTEST_LOOK or sent - sent_then < LEAST_SEGMENTS * seconds:
            return None
        return (again - again_then) / (sent - sent_then)


def _tcp(text: str) -> tuple[int, int] | None:
    """Segments that were sent again, and all that were sent."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) != 2:
        return None
    found = dict(zip(*lines, strict=False))
    again, sent = found.get("RetransSegs", ""), found.get("OutSegs", "")
    return (int(again), int(sent)) if again.isdigit() and sent.isdigit() else None


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
