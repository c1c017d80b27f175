"""One job while a plan is made: where it stands, what it asks for, and what became of it. Which places it begins with: `_seat` in state.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..model.reasons import Reason
from ..model.values import Job, Kind, Preemptible
from .fleet import Seat
from .form import Form, Wants
from .grid import Eligible


@dataclass(slots=True, eq=False)
class Work:
    job: Job
    order: int  # place by (submitted, name): the end of every ordering
    home: int
    form: Form
    kind: Kind = field(init=False)
    state: str = field(init=False)
    charged_leaf: int = field(init=False)
    types: tuple[int, ...] = field(init=False)
    backfilled: bool = field(init=False)
    seats: tuple[Seat, ...] = ()
    first_seats: tuple[Seat, ...] = ()
    milli: int = 0
    quota_type: int = -1
    degraded: bool = False
    evicted: bool = False  # by this plan
    moved: bool = False
    firm: bool = False  # its place in this plan is as good as one that it had before
    stale: bool = False
    why: Reason | None = None
    for_job: str | None = None
    sequence: int = 0  # when it was last given a place, among all of this plan

    def __post_init__(self) -> None:
        self.kind, self.types = self.form.kind, self.form.types
        self.charged_leaf, self.state = self.home, self.job.run.state
        self.backfilled = self.job.run.backfilled

    def stand_at(self, seats: tuple[Seat, ...], type_of: Sequence[int]) -> None:
        """It stands there as the plan begins."""
        self.seats = self.first_seats = seats
        each = self.form.each
        if each is not None:  # all of them are alike
            self.milli, self.quota_type = each[0] * len(seats), type_of[seats[0].node]
            self.degraded = len(seats) < self.form.all_least
            return
        self.milli = sum([seat.milli for seat in seats])
        self.quota_type = type_of[next((seat.node for seat in seats if seat.milli), seats[0].node)]
        self.note_degraded()

    def trust(self, among: str) -> str:
        """The domain inside which it may share a GPU, where that may be done `among` jobs of their own kind: job, quota or any. Services may have
        one of their own (colocation.py)."""
        if self.kind.sharing == "timeslice" or among == "any":
            domain = "*"
        else:
            domain = self.job.name if among == "job" else self.job.quota
        return f"{domain} serves" if self.form.side is not None and self.form.side.own_trust else domain

    @property
    def leaf(self) -> int:
        """The leaf that is charged with what it holds, else its own."""
        return self.charged_leaf if self.seats else self.home

    @property
    def open_types(self) -> tuple[int, ...]:
        """The quota types in which it may get what it lacks."""
        return (self.quota_type,) if self.seats else self.types

    @property
    def asks_again(self) -> bool:
        """Whether a job that is stopping was evicted, and so waits again as soon as it has stopped."""
        run = self.job.run
        return run.last_evicted is not None and (run.since is None or run.last_evicted >= run.since)

    @property
    def fresh(self) -> bool:
        """Whether it stands only by this plan: nobody has begun to work there."""
        return not self.first_seats

    @property
    def stayed(self) -> bool:
        """Whether it stood before this plan and was neither put out nor moved by it."""
        return bool(self.first_seats) and not self.evicted and not self.moved

    def here_since(self, now: int) -> int:
        """When it came to its place, as the next plan will see it."""
        started = self.job.run.started
        return now if started is None or not self.first_seats or self.evicted or self.moved else started

    @property
    def stood_before(self) -> bool:
        """Whether its minimum ran before this plan."""
        return self._is_whole(self.first_seats)

    @property
    def repaired(self) -> bool:
        """Whether this plan gave it what its minimum lacked: then nothing is taken from it in the same plan but the whole."""
        return bool(self.first_seats) and not self.evicted and not self.degraded and not self.stood_before

    @property
    def gave_back(self) -> bool:
        """Whether this plan has taken workers from it that ran, and left others: then it gets none in the same plan."""
        first, seats = self.first_seats, self.seats
        if not first or seats is first or not seats or self.evicted or self.moved:
            return False
        return not {*first} <= {*seats}

    def eligible(self, place: int, quota_type: int) -> Eligible:
        """The nodes on which its workers of a role may stand, were they empty."""
        return self.form.eligible(place, quota_type, suspect=self.kind.tolerates_suspect, spare=bool(self.seats))

    def grown(self) -> tuple[Seat, ...]:
        """The workers that this plan has added to those that run."""
        first = self.first_seats
        if not first or self.seats is first or self.evicted or self.moved:
            return ()
        stood = {*first}
        return tuple([seat for seat in self.seats if seat not in stood])

    def count(self, role: int) -> int:
        return sum(1 for seat in self.seats if seat.role == role)

    def missing(self) -> Wants:
        """The workers up to the minimum of every role that have no place."""
        seats = self.seats
        if not seats:
            return self.form.wants
        wants = []
        for place, role in enumerate(self.kind.roles):
            short = role.least - self.count(place)
            if short > 0:
                wants.append((place, tuple(sorted(self.free_ranks(place)[:short]))))
        return tuple(wants)

    def missing_milli(self, quota_type: int) -> int:
        """What is missing of it up to its minimum, as it would be charged in a quota type."""
        return self.form.wants_milli(self.missing(), quota_type) if self.seats else self.form.least_milli(quota_type)

    def free_ranks(self, place: int) -> list[int]:
        """The indexes that more workers of a role may have, the lower ones first; behind them those of workers that are still on their way out."""
        taken = {seat.rank for seat in self.seats if seat.role == place}
        free = [rank for rank in range(self.kind.roles[place].most) if rank not in taken]
        away = self.ranks_away(place)
        return sorted(free, key=lambda rank: (rank in away, rank)) if away else free

    def ranks_away(self, place: int) -> set[int]:
        """The indexes of a role's workers that the run is giving up: until they are gone nobody could tell another one of that index from them."""
        run = self.job.run
        return {one.index for one in run.leaving if one.role == place} if run.leaving and run.state in ("running", "starting") else set()

    def missing_like_now(self) -> Wants:
        """The workers that it has, to be placed elsewhere."""
        places = sorted({seat.role for seat in self.seats})
        return tuple((place, tuple(seat.rank for seat in self.seats if seat.role == place)) for place in places)

    @property
    def movable(self) -> bool:
        """Running or about to run by this plan, preemptible, not said to be without a checkpoint, and not put out or moved by this plan."""
        if not self.seats or self.evicted or self.moved or self.degraded or (self.state != "running" and not self.fresh):
            return False
        return self.kind.preemptible is Preemptible.ALWAYS and self.job.movable

    @property
    def ends(self) -> bool:
        """Whether it is known when it leaves, or it gives way: only then its places come free, as far as anyone knows."""
        return self.job.limit_ms is not None or self.job.estimate_ms is not None or self.backfilled

    def note_degraded(self) -> None:
        """It is degraded where it runs below the minimum of a role."""
        self.degraded = bool(self.seats) and not self._is_whole(self.seats)

    def _is_whole(self, seats: Sequence[Seat]) -> bool:
        """Whether these are the minimum of each role, and perhaps more."""
        if len(seats) < self.form.all_least:
            return False
        roles = self.kind.roles
        return len(roles) == 1 or all(sum([seat.role == place for seat in seats]) >= role.least for place, role in enumerate(roles))
