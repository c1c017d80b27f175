"""A fleet that lives: jobs come, end and are withdrawn, nodes break and return, quotas are edited, time passes, and every plan is legal."""

import copy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .builders import H100, job, node, quota
from .laws import LAWS
from .legal import check_plan
from .planner import plan_of
from .replay import apply_decision, apply_in_transit, apply_plan

Json = dict[str, Any]
LEAVES = ("a", "b/c", "b/d")
TIMES = ("submitted", "since", "started", "until", "degraded_since", "last_evicted", "last_moved")


class Fleet(RuleBasedStateMachine):
    """The scenario is the world; a plan changes it only through the twin's own way of carrying it out."""

    def __init__(self) -> None:
        super().__init__()
        self.world: Json = {}
        self.born = 0
        self.told: Json = {}
        self.layouts: list[Json] = []  # decided, and waiting for somebody to leave

    @initialize(spine=st.booleans(), split=st.booleans(), capped=st.sampled_from([None, None, 3000, 6000]))
    def begin(self, spine: bool, split: bool, capped: int | None) -> None:
        nodes = [node(f"n{number}", 4, path={"leaf": f"l{number // 2}"} if spine else {}) for number in range(4)]
        if split:
            nodes[3]["mig"] = [{"gpu": 3, "instances": [{"profile": "3g.40gb", "start": 4}, {"profile": "1g.10gb", "start": 0}]}]
        self.world = {
            "format": "gpufleet-scenario/1",
            "now": "2026-11-20T09:00:00Z",
            "settings": {"hysteresis_s": 60},
            "topology": {"levels": ["leaf"] if spine else []},
            "nodes": nodes,
            "quotas": [quota("a", 6), quota("b", 10), quota("b/c", 4, parent="b"), quota("b/d", 4, parent="b", weight=2)],
            "jobs": [],
        }
        if capped:
            self.world["power"] = {"gpu_watts": {H100: 700}, "caps": [{"watts": capped, "start": 0, "end": 600}, {"watts": 9000, "start": 300}]}

    @rule(
        leaf=st.sampled_from(LEAVES),
        cls=st.sampled_from(["batch", "batch", "interactive", "inference"]),
        workers=st.sampled_from([1, 1, 2, 4]),
        gpus=st.sampled_from([1, 1, 2, 4]),
        more=st.sampled_from([0, 0, 1, 3]),
        lasts=st.sampled_from([None, 60, 600, 7200]),
        level=st.sampled_from([None, None, "node", "leaf"]),
        firm=st.booleans(),
    )
    def submit(self, leaf: str, cls: str, workers: int, gpus: int, more: int, lasts: int | None, level: str | None, firm: bool) -> None:
        self.born += 1
        asked = job(f"j-{self.born}", leaf, workers=workers, gpus=gpus, most=workers + more, grace_s=30, limit_s=lasts)
        asked.update({"class": cls, "submitted": 0})
        if level and (level == "node" or self.world["topology"]["levels"]):
            asked["topology"] = {"required": level}
        if firm and lasts:
            asked["preemptible"] = False
        self.world["jobs"].append(asked)

    @rule(share=st.sampled_from(["1g.10gb", 0.5, 0.25]), leaf=st.sampled_from(LEAVES))
    def submit_a_part(self, share: Any, leaf: str) -> None:
        self.born += 1
        role = {"name": "worker", "mig": share} if isinstance(share, str) else {"name": "worker", "gpu_share": share}
        sharing = "mig" if isinstance(share, str) else "mps"
        self.world["jobs"].append({**job(f"j-{self.born}", leaf), "submitted": 0, "sharing": sharing, "roles": [role]})

    @precondition(lambda self: self.world.get("jobs"))
    @rule(pick=st.integers(0, 1000))
    def end(self, pick: int) -> None:
        """Somebody is done, or gives up."""
        self.world["jobs"].pop(pick % len(self.world["jobs"]))

    @rule(pick=st.integers(0, 3), health=st.sampled_from(["down", "draining", "suspect", "healthy"]))
    def change_health(self, pick: int, health: str) -> None:
        """A node that goes down takes the workers on it along; their gangs are degraded."""
        broken = self.world["nodes"][pick]
        broken["health"] = health
        if health != "down":
            return
        for one in copy.copy(self.world["jobs"]):
            left = [worker for worker in one.get("workers") or [] if worker["node"] != broken["name"]]
            if len(left) == len(one.get("workers") or []):
                continue
            one["workers"] = left
            one["leaving"] = [worker for worker in one.get("leaving") or [] if worker["node"] != broken["name"]]
            if not left:
                self.world["jobs"].remove(one)
            elif one["state"] == "running" and len(left) < one["roles"][0].get("min", 1):
                one.setdefault("degraded_since", 0)
                if one["degraded_since"] is None:
                    one["degraded_since"] = 0

    @rule(pick=st.integers(0, 3), guaranteed=st.sampled_from([0, 2, 4, 8]), limit=st.sampled_from([None, None, 6]))
    def edit_quota(self, pick: int, guaranteed: int, limit: int | None) -> None:
        self.world["quotas"][pick].update(guaranteed=guaranteed, limit=limit)

    @rule(seconds=st.sampled_from([5, 45, 600]))
    def wait(self, seconds: int) -> None:
        """Time passes: who was on his way out is gone, what was promised begins, whose time is up ends."""
        for one in copy.copy(self.world["jobs"]):
            for key in TIMES:
                if one.get(key) is not None:
                    one[key] -= seconds
            if one.get("state") == "stopping" and one["until"] <= 0:
                self.world["jobs"].remove(one)
            if one.get("limit_s") and one.get("state") == "running" and -one["started"] >= one["limit_s"]:
                self.world["jobs"].remove(one)
            one["leaving"] = []
        for cap in (self.world.get("power") or {}).get("caps") or []:
            cap.update({key: cap[key] - seconds for key in ("start", "end") if key in cap})
        if any(other.get("state") == "stopping" for other in self.world["jobs"]):
            return
        for decision in self.layouts:
            apply_decision(self.world, decision)
        self.layouts.clear()
        for one in self.world["jobs"]:
            if one.get("state") == "reserved":
                one.update(state="running", started=0, until=None)

    @rule(at_once=st.booleans(), law=st.sampled_from(sorted(LAWS.keys() - {"legal"})))
    def plan(self, at_once: bool, law: str) -> None:
        self.told = plan_of(self.world)
        assert check_plan(self.world, self.told, plan_of) == []
        assert LAWS[law](self.world) == [], law
        self.world = apply_plan(self.world, self.told) if at_once else apply_in_transit(self.world, self.told)
        if not at_once:
            self.layouts += [one for one in self.told["decisions"] if one["action"] == "repartition" and one["after"]]

    @invariant()
    def the_present_is_possible(self) -> None:
        if self.world:
            plan_of(self.world)  # a scenario that can't be is refused, and an invariant of the engine that breaks is raised


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)
