"""What the probers of workers have written (`asking`), as the console has read it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from scheduler.backends.slurm.asking import MOST, NOT_YET, SILENT, SILENT_FOR, Answer, answer_of, file_of
from scheduler.backends.slurm.outcomes import asked_of, text_of
from scheduler.backends.slurm.runs import Run

READ_EACH = 2.0  # seconds at least between two times that the files of a part are read
KEPT_FOR = 60.0  # seconds that is remembered of a part which nobody asks for


@dataclass(frozen=True, slots=True)
class Heard:
    line: str
    at: datetime  # when it was read first


class Answers:
    """Remembers when each prober last had something new to say: moments are compared on the console's clock only."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, int, int, int], tuple[float, dict[str, Heard]]] = {}

    def sweep(self) -> None:
        moment = monotonic()
        self._heard = {place: kept for place, kept in self._heard.items() if moment - kept[0] < KEPT_FOR}

    def of(self, run: Run, part: Mapping[str, Any], now: datetime, note: Callable[[dict[str, list[str]]], None]) -> dict[str, Answer]:
        """By worker, of a part that runs. `note` writes down which probers have been silent for too long and at which line, so that a console that
        comes back does not take it for news."""
        place, moment = (run.key, int(part["number"]), int(part.get("id") or 0), int(part.get("began", 0))), monotonic()
        read, before = self._heard.get(place, (-inf, {}))
        heard = before
        deaf: Mapping[str, list[str]] = part.get("deaf") or {}
        if moment - read >= READ_EACH:
            heard = {}
            for seat, line in _lines(run, part).items():
                last = before.get(seat) or (Heard(deaf[seat][0], datetime.fromisoformat(deaf[seat][1])) if seat in deaf else None)
                if last is not None and line in (None, last.line):
                    heard[seat] = last
                elif line is not None:
                    heard[seat] = Heard(line, now)
            self._heard[place] = (moment, heard)
        late = {seat: one for seat, one in heard.items() if answer_of(one.line) is not None and now - one.at >= timedelta(seconds=SILENT_FOR)}
        silent = {seat: [one.line, one.at.isoformat()] for seat, one in late.items()}
        if silent != deaf:
            note(silent)
        answers = {seat: answer_of(one.line) or Answer(False, None, NOT_YET) for seat, one in heard.items()}
        return answers | {seat: Answer(False, one.at + timedelta(seconds=SILENT_FOR), SILENT) for seat, one in late.items()}


def _lines(run: Run, part: Mapping[str, Any]) -> dict[str, str | None]:
    """None: it could not be read."""
    seats = [f"{seat['role']}-{seat['index']}" for seat in part["seats"]]

    def read() -> dict[str, str | None]:
        return {seat: _line(Path(run.folder), file_of(seat, part["number"])) for seat in seats}

    try:
        return asked_of(run, read)
    except OSError:
        return dict.fromkeys(seats)


def _line(folder: Path, name: str) -> str | None:
    try:
        return text_of(folder, name, most=MOST)
    except FileNotFoundError:
        return ""
    except OSError:
        return None
