"""The two plays of a what-if, each in a process of its own, and what they have told; and what other programs of forecasts tell."""

import json
import math
import subprocess
import threading
from collections.abc import Iterable, Sequence
from queue import Empty, Queue
from typing import IO, Any, Self

from scheduler.services.forecasts.programs import program
from scheduler.simulation.span import Cost

MEASURED_MS = 4000  # of a play, the last of which say what plans cost


class Pair:
    """What both plays have told."""

    def __init__(self, plays: Sequence["Play"]) -> None:
        self._plays = plays
        self.courses: list[list[Sequence[int]]] = [[] for _ in plays]
        self.tables: list[dict[int, dict[str, Any]]] = [{} for _ in plays]
        self._seen = [[(0.0, 0, 0)] for _ in plays]  # milliseconds, plans that were made by then, hours that were over

    @property
    def is_on(self) -> bool:
        return any(play.is_on for play in self._plays)

    @property
    def codes(self) -> list[int]:
        return [play.code for play in self._plays if not play.is_on]

    @property
    def hours(self) -> int:
        """Played by both."""
        return min(map(len, self.courses))

    @property
    def compared(self) -> int:
        """The last hour of which both have told figures; 0: none."""
        return max(set(self.tables[0]) & set(self.tables[1]), default=0)

    @property
    def cost(self) -> Cost | None:
        """Of late, as much as of either of those that go on: the first hours may be of an idle fleet. None: not known yet."""
        found = []
        for seen in (seen for play, seen in zip(self._plays, self._seen, strict=True) if play.is_on):
            took, plans, hours = seen[-1]
            before = next(((took - at, plans - made, hours - over) for at, made, over in reversed(seen) if took - at >= MEASURED_MS), None)
            if before is None or not before[1]:
                return None
            took, plans, hours = before
            found.append(Cost(took / plans, plans / hours if hours else math.inf))
        return Cost(max(one.each for one in found), max(one.plans for one in found)) if found else None

    def listen(self) -> None:
        for number, play in enumerate(self._plays):
            for message in play.messages():
                if "course" in message:
                    self.courses[number].append(message["course"])
                self._seen[number].append((message["ms"], message["plans"], len(self.courses[number])))
                if "table" in message:
                    self.tables[number][message["hour"]] = message


class Program:
    """A program of its own that is given a text and says lines of JSON. It ends with the block."""

    def __init__(self, module: str, *arguments: str, text: bytes) -> None:
        self._process = subprocess.Popen(**program(module, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._said: Queue[bytes | None] = Queue()
        self._ended = False
        self._threads = [
            threading.Thread(target=_write, args=(self._process.stdin, text), daemon=True),
            threading.Thread(target=_read, args=(self._process.stdout, self._said), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()

    @property
    def is_on(self) -> bool:
        return not self._ended

    @property
    def code(self) -> int:
        return self._process.wait()

    def messages(self, wait: float = 0.25) -> Iterable[dict[str, Any]]:
        """What was said since; it waits a moment where nothing was."""
        while not self._ended:
            try:
                line = self._said.get(timeout=wait)
            except Empty:
                return
            if line is None:
                self._ended = True
                return
            yield json.loads(line)
            wait = 0.0


class Play(Program):
    """One side of a what-if."""

    def __init__(self, text: bytes, *, hours: int, step: int, seconds: float, order: str = "tree") -> None:
        options = {"hours": hours, "seconds": seconds, "step": step, "policy": order}
        super().__init__("scheduler.services.forecasts.apart", *(f"--{name}={value}" for name, value in options.items()), text=text)


def _write(pipe: IO[bytes], text: bytes) -> None:
    try:
        with pipe:
            pipe.write(text)
    except BrokenPipeError:
        return  # it was ended; its status says so


def _read(pipe: IO[bytes], said: "Queue[bytes | None]") -> None:
    with pipe:
        for line in pipe:
            said.put(line)
    said.put(None)
