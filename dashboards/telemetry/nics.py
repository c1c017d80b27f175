"""Errors that this machine's network adapters have counted, from the kernel's own files."""

from collections.abc import Iterator
from pathlib import Path

NET, INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
OF_NET = ("rx_errors", "tx_errors")
OF_PORT = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors")


def nic_errors_read(*, net: Path = NET, infiniband: Path = INFINIBAND) -> tuple[int, int] | None:
    """All adapters together, and how many counters that are; None where none tells. Devices without hardware, such as bridges, do not count."""
    told = [int(text) for file in _counters(net, infiniband) if (text := _text(file)).isdigit()]
    return (sum(told), len(told)) if told else None


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
