"""Network ports of this machine and what their links carry, as the kernel tells it: InfiniBand and RoCE by device, as mlx5_0, others by interface."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Port(NamedTuple):
    name: str
    speed_gbps: int | None  # None: the link is down, or does not say


def ports_of(tree: Path = Path("/sys")) -> list[Port]:
    """By name. Interfaces that no hardware stands behind, such as bridges, are none; nor is the interface of a port that is listed by its device."""
    return sorted([*_fabric(tree / "class/infiniband"), *_ethernet(tree / "class/net")])


def _fabric(folder: Path) -> Iterator[Port]:
    """An adapter of several ports as telemetry names it: by its device, with the fastest of them."""
    for device in _in(folder):
        # One that is down answers with the lowest rate there is.
        rates = [_read(port / "rate") for port in _in(device / "ports") if _read(port / "state").endswith("ACTIVE")]
        yield Port(device.name, max((speed for rate in rates if (speed := _gbps(rate.partition(" ")[0]))), default=None))


def _ethernet(folder: Path) -> Iterator[Port]:
    for interface in _in(folder):
        if (interface / "device").exists() and not (interface / "device/infiniband").exists():
            yield Port(interface.name, _gbps(_read(interface / "speed"), 1000))


def _gbps(text: str, parts: int = 1) -> int | None:
    try:
        speed = round(float(text) / parts)
    except ValueError:
        return None
    return speed if speed > 0 else None


def _in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _read(file: Path) -> str:
    """A port that is down answers some files with an error."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
