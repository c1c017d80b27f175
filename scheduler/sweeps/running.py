"""The points of a sweep, played in processes of their own.

Each leaves one file, written whole or not at all, so that a sweep goes on where it stopped.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import orjson

from scheduler.engine.model.values import Scenario

from .points import Axis, Interval, Point, SweepError

FORMAT = "gpufleet-sweep/1"
STATES = ("completed", "saturated", "timed out", "failed")
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the results of one sweep are: one scenario, one interval, loads or fleet sizes."""

    path: Path
    key: str
    prices: Mapping[str, float] = field(default_factory=dict)  # of a GPU hour by type, for policies that go by money

    def of(self, point: Point) -> Path:
        return self.path / "points" / f"{point.name}.json"

    def read(self, point: Point) -> Result | None:
        try:
            result = orjson.loads(self.of(point).read_bytes())
        except FileNotFoundError:
            return None
        except orjson.JSONDecodeError as error:
            raise SweepError(f"{self.of(point)}: not a result of a sweep ({error}); remove it, and the point is played again") from error
        if not isinstance(result, dict) or result.get("sweep") != self.key or result.get("state") not in STATES:
            raise SweepError(f"{self.of(point)}: not a result of this sweep; remove it, and the point is played again")
        return result

    def write(self, point: Point, result: Result) -> None:
        write_whole(self.of(point), orjson.dumps({"sweep": self.key, **asdict(point), **result}, option=orjson.OPT_INDENT_2))


def folder_of(path: Path, scenario: bytes, axis: Axis, interval: Interval, prices: Mapping[str, float] | None = None) -> Folder:
    """The folder, made where there is none. One with another sweep in it is refused: its points were measured otherwise."""
    terms: tuple[Any, ...] = (FORMAT, axis, asdict(interval), *([sorted(prices.items())] if prices else []))
    key = blake2b(repr(terms).encode() + scenario, digest_size=12).hexdigest()
    about = path / "sweep.json"
    (path / "points").mkdir(parents=True, exist_ok=True)
    try:
        known = orjson.loads(about.read_bytes())
    except FileNotFoundError:
        said = {"format": FORMAT, "sweep": key, "axis": axis, "warm_up_s": interval.warm_up / 1000, "until_s": interval.until / 1000}
        write_whole(about, orjson.dumps(said, option=orjson.OPT_INDENT_2))
        return Folder(path, key, prices or {})
    except orjson.JSONDecodeError:
        known = None
    if not isinstance(known, dict) or known.get("sweep") != key:
        raise SweepError(f"--out: {path} holds a sweep of another scenario, interval or axis; choose another folder")
    return Folder(path, key, prices or {})


def write_whole(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def play(folder: Folder, scenario: Scenario, interval: Interval, point: Point, on: Callable[[], None] = lambda: None) -> None:
    """Play a point and write down what became of it. An error is a result, too."""
    from .measuring import measured

    began = time.perf_counter()
    try:
        result = measured(scenario, point, interval, on, prices=folder.prices)
    except Exception as error:
        result = fault_told(error)
    folder.write(point, {**result, "wall_s": round(time.perf_counter() - began, 3)})


def fault_told(error: Exception) -> Result:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return {"state": "failed", "error": f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"}


def _in_process(folder: Folder, scenario: Scenario, interval: Interval, point: Point, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its processes itself
    play(folder, scenario, interval, point, partial(stop_without, parent))


def stop_without(parent: int) -> None:
    """A killed sweep leaves no process that goes on alone."""
    if os.getppid() != parent:
        os._exit(1)


def run(
    folder: Folder, scenario: Scenario, interval: Interval, points: Iterable[Point], *, workers: int, limit_s: float, told: Callable[[Point], None]
) -> None:
    """Play points, so many at a time, each for at most so long."""
    context = get_context("fork" if sys.platform == "linux" and "fork" in get_all_start_methods() else None)
    todo, running = iter(points), dict[int, tuple[BaseProcess, Point, float]]()
    try:
        while True:
            while len(running) < workers and (point := next(todo, None)) is not None:
                process: BaseProcess = context.Process(target=_in_process, args=(folder, scenario, interval, point, os.getpid()), name=point.name)
                process.start()
                running[process.sentinel] = (process, point, time.monotonic() + limit_s)
            if not running:
                return
            ready = wait(list(running), timeout=max(0.0, min(deadline for _, _, deadline in running.values()) - time.monotonic()))
            for sentinel, (process, point, deadline) in list(running.items()):
                late = sentinel not in ready and time.monotonic() >= deadline
                if sentinel in ready or late:
                    _end(process)
                    if not folder.of(point).exists():  # a process that ends on the last moment may have written its result
                        folder.write(point, _without_result(process, limit_s, late=late))
                    del running[sentinel]
                    told(point)
    finally:
        for process, _, _ in running.values():
            _end(process)
        for part in (folder.path / "points").glob(".*.part"):
            with contextlib.suppress(FileNotFoundError):
                part.unlink()


def _end(process: BaseProcess) -> None:
    if process.is_alive():
        process.kill()
    process.join()


def _without_result(process: BaseProcess, limit_s: float, *, late: bool) -> Result:
    if late:
        return {"state": "timed out", "error": f"did not end within {limit_s:g} s", "wall_s": limit_s}
    code = process.exitcode or 0
    return {"state": "failed", "error": f"its process was ended by signal {-code}" if code < 0 else f"its process ended with status {code}"}
