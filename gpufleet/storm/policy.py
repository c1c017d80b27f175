"""What those who share out the fleet do in a storm: windows, floors and budgets that come, change and go. Drawn apart from all else."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any

from gpufleet.storm.edits import DAY, TreeStorm, team_path
from gpufleet.storm.fleet import EVERYTHING, TEAMS, TYPE
from quotas.models import AtStop, Budget, ChangeState, QuotaChange, Reservation, ReservationState
from quotas.services.budgets import budget_create, budget_remove, exception_grant
from scheduler.services.budgets import budgets_step
from scheduler.services.windows.reservations import reservation_cancel, reservation_change, reservation_request, window_end

# So often on a day.
POLICY_A_DAY = {"window reserved": 4, "floor held": 2, "window changed": 3, "window over": 2, "budget set": 2}
COUNT_MINUTES = 20
QUIET_POLICY = "budgets counted"


def policy_made() -> dict[str, int]:
    """What came about by now."""
    owners = list(Reservation.objects.values_list("quota", flat=True))
    edits = QuotaChange.objects.filter(state=ChangeState.APPLIED).count()
    floors = sum(owner is None for owner in owners)
    return {"edits": edits, "windows": len(owners) - floors, "floors": floors, "budgets": Budget.objects.count()}


class PolicyStorm:
    """`tell` writes the story, `now` is the storm's moment."""

    def __init__(self, seed: int, now: Callable[[], datetime], tell: Callable[[str], None]) -> None:
        self.rng = Random(f"policy of {seed}")  # noqa: S311 (no secret)
        self.now, self.tell = now, tell
        self.tree = TreeStorm(seed, now, tell)

    def of_day(self, begin: datetime, length: timedelta = DAY) -> Iterator[tuple[datetime, str, Callable[[], None]]]:
        """What happens on a day, and when; or in less time."""
        acts = {
            "window reserved": self.reserve,
            "floor held": self.hold_floor,
            "window changed": self.change,
            "window over": self.end,
            "budget set": self.budget,
        }
        for kind, times in POLICY_A_DAY.items():
            for _ in range(times):
                yield begin + length * self.rng.random(), kind, acts[kind]
        yield from self.tree.of_day(begin, length)
        for number in range(24 * 60 // COUNT_MINUTES):
            yield begin + timedelta(minutes=COUNT_MINUTES * number + 3), QUIET_POLICY, self.count

    def reserve(self) -> None:
        """GPUs, whole nodes or a block for a team, soon, once or each day."""
        rng, team = self.rng, self.rng.choice(list(TEAMS))
        amount = rng.choice(({"gpus": rng.randint(2, 20)}, {"nodes": rng.randint(1, 3)}, {"gpus": 4 * rng.randint(1, 3), "level": "leaf"}))
        self._request(amount | {"quota": team_path(team), "decay_s": rng.choice((None, 900))})

    def hold_floor(self) -> None:
        self._request({"job_class": self.rng.choice(("inference", "interactive")), "gpus": self.rng.randint(2, 10)})

    def _request(self, given: dict[str, Any]) -> None:
        rng, now = self.rng, self.now()
        start = now + timedelta(minutes=rng.randint(5, 240))
        given |= {
            "name": "Storm",
            "gpu_type": TYPE,
            "zone": rng.choice(("UTC", "Europe/Berlin")),
            "starts_at": start,
            "ends_at": start + timedelta(minutes=rng.randint(20, 240)),
            "rule": rng.choice(("", "", "FREQ=DAILY;COUNT=3")),
            "notice_s": rng.choice((60, 300, 600)),
            "lead_s": rng.choice((0, 300, 900)),
            "idle": rng.choice(("held", "lent")),
        }
        made = reservation_request(access=EVERYTHING, given=given, now=now)
        self.tell(f"{made.public_id} reserves {made.gpus_milli // 1000} GPUs for {made.owner_label} from {start:%H:%M}")

    def _one(self) -> Reservation | None:
        found = list(Reservation.objects.filter(state=ReservationState.APPROVED).order_by("pk"))
        return self.rng.choice(found) if found else None

    def change(self) -> None:
        found = self._one()
        if found is not None:
            given = {"gpus": self.rng.randint(1, 16)}
            reservation_change(access=EVERYTHING, reservation=found, given=given, now=self.now())
            self.tell(f"{found.public_id} holds {given['gpus']} GPUs now")

    def end(self) -> None:
        found = self._one()
        if found is not None:
            service = self.rng.choice((window_end, reservation_cancel))
            service(access=EVERYTHING, reservation=found, now=self.now())
            self.tell(f"{found.public_id}: {service.__name__}")

    def budget(self) -> None:
        """So small that it is used up within the hours to come; some are excepted then."""
        rng, now, team = self.rng, self.now(), self.rng.choice(list(TEAMS))
        given = {"name": "Storm", "quota": team_path(team), "unit": "gpu_hours", "amount": 1000 * rng.randint(5, 60), "period": "custom"}
        times = {"starts_at": now, "ends_at": now + timedelta(hours=rng.randint(2, 8))}
        made = budget_create(access=EVERYTHING, given=given | times | {"at_stop": rng.choice(AtStop.values)}, now=now)
        if rng.random() < 0.4:
            until = now + timedelta(hours=rng.randint(1, 4))
            exception_grant(access=EVERYTHING, budget=made, extra=rng.choice((None, 20_000)), until=until, reason="Storm", now=now)
        self.tell(f"{made.public_id} limits {team} to {made.amount // 1000} GPU-hours")

    def count(self) -> None:
        if turned := budgets_step(now=self.now()):
            self.tell(f"{turned} budgets have turned")
        self.tree.turn()

    def calm(self) -> None:
        """Nothing is held or limited any more."""
        for found in Reservation.objects.filter(state=ReservationState.APPROVED).order_by("pk"):
            reservation_cancel(access=EVERYTHING, reservation=found, now=self.now())
        for budget in Budget.objects.filter(removed_at__isnull=True).order_by("pk"):
            budget_remove(access=EVERYTHING, budget=budget, now=self.now())
        self.tree.calm()
