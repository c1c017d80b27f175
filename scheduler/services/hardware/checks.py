"""What must work before jobs run on a cluster, tried step by step. The doctor and the page that adds a cluster show the same steps."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import TypeVar

from gpufleet.core.findings import Finding
from scheduler.backends.base import BackendError

T = TypeVar("T")
log = logging.getLogger(__name__)
MEANS = "Jobs for this cluster do not start until this works."
PATIENCE = 5.0  # seconds for a file system
FIELDS = {"slurmrestd": "rest_url"}  # of steps that have not the name of their field


@dataclass(frozen=True, slots=True)
class Check:
    """`look` yields what was seen, as text, and what is wrong; `do` is said where it cannot look at all. A cluster is not added while one fails
    that is needed."""

    name: str
    look: Callable[[], Iterator[str | Finding]]
    do: str
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """How one check went."""

    name: str
    seen: str = ""
    findings: tuple[Finding, ...] = ()
    needed: bool = True
    tried: bool = True

    @property
    def hinders(self) -> bool:
        """Whether the cluster cannot be added because of it."""
        return self.needed and (not self.tried or any(not finding.note for finding in self.findings))

    @property
    def result(self) -> str:
        if not self.tried:
            return "skipped"
        return "failed" if self.hinders else "warning" if self.findings else "ok"

    @property
    def field(self) -> str:
        """The field of a form or a body that it tries, where there is one of that name."""
        return FIELDS.get(self.name, self.name)

    @property
    def told(self) -> str:
        """In a line: what is wrong, or else what was seen."""
        return " ".join(finding.what for finding in self.findings) or self.seen


class StepsFailed(Exception):
    """A cluster was not added. Nothing was changed."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__("; ".join(f"{step.name}: {step.told}" for step in steps if step.result == "failed"))
        self.steps = list(steps)


def steps_tried(*stages: Sequence[Check]) -> list[Step]:
    """Every check in its order. A stage is not tried while something before it hinders: it would only fail for that reason again."""
    steps: list[Step] = []
    for stage in stages:
        hindered = any(step.hinders for step in steps)
        steps += [Step(check.name, "Not tried.", needed=check.needed, tried=False) if hindered else _tried(check) for check in stage]
    return steps


def _tried(check: Check) -> Step:
    seen: list[str] = []
    findings: list[Finding] = []
    try:
        for one in check.look():
            if isinstance(one, Finding):
                findings.append(one)
            else:
                seen.append(one)
    except (BackendError, OSError) as fault:
        findings.append(Finding(str(fault), MEANS, check.do))
    except Exception as fault:  # one that breaks must not hide what the others find
        log.exception("the step %s could not be carried out", check.name)
        findings.append(Finding(f"This step could not be carried out: {type(fault).__name__}: {fault}", MEANS, check.do))
    return Step(check.name, "; ".join(seen), tuple(findings), check.needed)


def in_time(place: object, look: Callable[[], T]) -> T:
    """What comes of a look at files. From a thread, so that nobody waits for a file system that hangs."""
    answer: Future[T] = Future()
    Thread(target=_answer, args=(answer, look), name="check", daemon=True).start()
    try:
        return answer.result(PATIENCE)
    except TimeoutError:
        raise BackendError(f"{place} does not answer within {PATIENCE:g} s.") from None


def _answer(answer: Future[T], look: Callable[[], T]) -> None:
    try:
        answer.set_result(look())
    except Exception as fault:
        answer.set_exception(fault)


def must_be_writable(folder: object) -> None:
    try:
        in_time(folder, lambda: tempfile.TemporaryFile(dir=str(folder)).close())
    except OSError as fault:
        raise BackendError(f"The console cannot write to {folder}: {fault.strerror}.") from fault
