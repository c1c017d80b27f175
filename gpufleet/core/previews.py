"""What a change does before it happens: sentences, and the jobs that it touches by name, as templates/_change.html shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

UNKNOWN = "The effect on jobs cannot be computed now."


@dataclass(frozen=True, slots=True)
class Effect:
    """What becomes of a job; `at` is the moment that belongs to it, `note` what it costs."""

    text: str
    at: datetime | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class JobEffect:
    """One job, with an effect for each of the ways in which the change can be made."""

    public_id: str
    name: str
    path: str
    owner: str
    gpus_milli: int
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Affected:
    """Further jobs that a change touches, under a title of their own; `more` are not listed."""

    title: str
    ways: tuple[str, ...]
    jobs: Sequence[JobEffect]
    more: int = 0


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """What was chosen and is not changed, for one reason. Each is an id, a name ("" where the reader may not know it), a state and why.
    `again`: it is looked at again when the change begins."""

    title: str
    jobs: Sequence[tuple[str, str, str, str]]
    again: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """`ways` heads the columns of effects. Jobs that the reader may not know are counted, not named. `as_of`: the moment of the fleet it is about.

    With `faults` the change cannot be made as it stands, and there is nothing else to say.
    """

    sentences: Sequence[str]
    ways: tuple[str, ...] = ()
    jobs: Sequence[JobEffect] = ()
    unseen: int = 0
    unseen_milli: int = 0
    more: int = 0
    others: Sequence[Affected] = ()
    left: Sequence[LeftAlone] = ()
    as_of: datetime | None = None
    faults: Sequence[str] = ()
