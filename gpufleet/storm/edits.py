"""What an admin of the quota tree does in a storm: changes of amounts, moves, new departments and archived ones, at once or later, and reverts."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any

from gpufleet.core.models import User
from gpufleet.storm.fleet import TEAMS, TYPE
from quotas.models import ChangeState, QuotaChange, QuotaNode
from quotas.permissions import access_for_user
from quotas.services.changes import Wanted, change_apply, change_draft, change_revert, change_schedule, change_withdraw, changes_turn
from scheduler.selectors.windows import capacity_now

DAY = timedelta(days=1)
EDITS_A_DAY = {"tree edited": 12}
EDITED = ("tree edited", "tree changed")


def team_path(name: str) -> str:
    """Where a team is now."""
    return QuotaNode.objects.get(name=name).path


class TreeStorm:
    """`tell` writes the story, `now` is the storm's moment. Drawn apart from all else."""

    def __init__(self, seed: int, now: Callable[[], datetime], tell: Callable[[str], None]) -> None:
        self.rng = Random(f"edits of {seed}")  # noqa: S311 (no secret)
        self.now, self.tell = now, tell
        self.access = access_for_user(User.objects.create_superuser("storm"))
        self._made = 0

    def of_day(self, begin: datetime, length: timedelta = DAY) -> Iterator[tuple[datetime, str, Callable[[], None]]]:
        for kind, times in EDITS_A_DAY.items():
            for _ in range(times):
                yield begin + length * self.rng.random(), kind, self.edit

    def edit(self) -> None:
        rng, now = self.rng, self.now()
        drawn = rng.choices([self._amounts, self._group, self._move, self._archive, self._revert], [5, 2, 2, 1, 1])[0]
        change = drawn()
        if change is None:
            return
        capacity = capacity_now().by_type
        common: dict[str, Any] = {"access": self.access, "change": change, "revision": change.revision, "capacity": capacity, "now": now}
        if rng.random() < 0.4:
            at = now + timedelta(minutes=rng.randint(5, 90))
            change_schedule(**common, apply_at=at)
            self.tell(f"{change.public_id} at {at:%H:%M}: {change.title}")
        else:
            change_apply(**common)
            self.tell(f"{change.public_id}: {change.title}")

    def turn(self) -> None:
        """Apply what is due."""
        if turned := changes_turn(capacity=lambda: capacity_now().by_type, now=self.now()):
            self.tell(f"{turned} changes of the tree take effect")

    def calm(self) -> None:
        """Every team is where it was, with what it had and without a limit, and the departments are gone."""
        for change in QuotaChange.objects.filter(state=ChangeState.SCHEDULED).order_by("pk"):
            change_withdraw(access=self.access, change=change, revision=change.revision, now=self.now())
        nodes = {node.name: node for node in QuotaNode.objects.filter(archived_at__isnull=True)}
        top = nodes["org"]
        moves = [
            {"op": "move", "node": nodes[team].public_id, "parent": top.public_id, "name": team} for team in TEAMS if nodes[team].parent_id != top.pk
        ]
        gone = [{"op": "archive", "node": node.public_id} for name, node in nodes.items() if name != "org" and name not in TEAMS]
        shares = [_shares(nodes[team], gpus, None, 1) for team, gpus in TEAMS.items()]
        change = self._draft([*moves, *gone, *shares])
        change_apply(access=self.access, change=change, revision=change.revision, capacity=capacity_now().by_type, now=self.now())

    def _draft(self, edits: list[dict[str, Any]]) -> QuotaChange:
        return change_draft(access=self.access, wanted=Wanted(edits, reason="Storm", over_capacity=True), now=self.now())

    def _live(self, *, teams: bool) -> list[QuotaNode]:
        live = QuotaNode.objects.filter(archived_at__isnull=True, depth__gt=0).order_by("pk")
        return [node for node in live if (node.name in TEAMS) == teams]

    def _amounts(self) -> QuotaChange:
        """Of one node, or of two of which one gives what the other takes; a limit may be below what is in use."""
        rng = self.rng
        nodes = rng.sample([*self._live(teams=True), *self._live(teams=False)], rng.choice((1, 2)))
        edits = []
        for node in nodes:
            guaranteed = rng.randint(0, 32)
            edits.append(_shares(node, guaranteed, rng.choice((None, None, guaranteed + rng.randint(0, 16))), rng.randint(0, 3)))
        return self._draft(edits)

    def _group(self) -> QuotaChange:
        """A new department with one of the teams in it, and what that team was guaranteed."""
        node = self.rng.choice(self._live(teams=True))
        held = node.shares.filter(gpu_type=TYPE).first()
        milli = 0 if held is None else held.guaranteed_milli
        self._made += 1
        values = {"kind": "department", "shares": {TYPE: {"guaranteed_milli": milli}}}
        top = QuotaNode.objects.get(parent=None)
        make = {"op": "create", "node": "new", "parent": top.public_id, "name": f"group-{self._made}", "set": values}
        return self._draft([make, {"op": "move", "node": node.public_id, "parent": "new", "name": node.name}])

    def _move(self) -> QuotaChange:
        rng = self.rng
        node = rng.choice(self._live(teams=True))
        parent = rng.choice([QuotaNode.objects.get(parent=None), *self._live(teams=False)])
        return self._draft([{"op": "move", "node": node.public_id, "parent": parent.public_id, "name": node.name}])

    def _archive(self) -> QuotaChange | None:
        found = self._live(teams=False)
        return self._draft([{"op": "archive", "node": self.rng.choice(found).public_id}]) if found else None

    def _revert(self) -> QuotaChange | None:
        found = list(QuotaChange.objects.filter(state=ChangeState.APPLIED).order_by("-pk")[:6])
        return change_revert(access=self.access, change=self.rng.choice(found), reason="Storm", now=self.now()) if found else None


def _shares(node: QuotaNode, guaranteed: int, limit: int | None, weight: int) -> dict[str, Any]:
    share = {"guaranteed_milli": 1000 * guaranteed, "limit_milli": None if limit is None else 1000 * limit, "weight": weight}
    return {"op": "update", "node": node.public_id, "set": {"shares": {TYPE: share}}}
