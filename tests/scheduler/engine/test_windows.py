"""The serving ramp: what runs at night is off the floor when the morning starts, or never stood on it."""

from typing import Any

import pytest

from scheduler.engine.model.reasons import spell_instant
from scheduler.engine.rules.legality import Reclaim
from scheduler.engine.state.planning import Cycle
from scheduler.scenarios.reading import parse
from scheduler.simulation.world import World

from .scenes import A100, H100, actions, at, job, leafed, node, placed, plan_of, quota, reasons, running, scene

NIGHT = "2026-11-20T02:00:00Z"
SEVEN_HOURS = 25_200
FLOOR = {"name": "serving", "class": "inference", "gpus": 6, "start": SEVEN_HOURS, "end": SEVEN_HOURS + 36_000, "notice_s": 600}


def night(nightly: dict, *more: dict, floor: dict = FLOOR) -> dict:
    return scene([node("n0")], [quota("batch", 0), quota("serve", 0)], [nightly, *more], reservations=[floor]) | {"now": NIGHT}


def serving(count: int = 6) -> dict:
    return job("serving", "serve", count, submitted=SEVEN_HOURS, work_s=7200, **{"class": "inference"})


def test_a_nightly_job_with_an_unknown_end_never_stands_on_the_floor() -> None:
    nightly = job("nightly", "batch", 8, submitted=0, grace_s=3600)  # too slow to leave within the notice
    plan = plan_of(night(nightly))

    assert actions(plan) == {}
    assert "window" in reasons(plan, "nightly")


def test_the_same_job_with_checkpoints_uses_the_floor_at_night_and_is_off_it_in_time() -> None:
    nightly = job("nightly", "batch", 8, submitted=0, grace_s=300, work_s=100_000, checkpoint={"interval_s": 1800, "save_s": 60})
    world = World(parse(night(nightly, serving())))
    world.run(world.now + 1000 * (SEVEN_HOURS - 1))
    assert len(world.active["nightly"].run.workers) == 1, "it runs on the floor's GPUs at night"

    world.run(world.template.now + 1000 * (SEVEN_HOURS + 400))
    started = world.lives["serving"].first_start
    assert started is not None
    assert started - world.template.now <= 1000 * (SEVEN_HOURS + 300)
    assert world.lives["nightly"].lost == 0, "it saved before it left"


def test_a_job_that_ends_before_the_floor_may_use_it() -> None:
    short = job("short", "batch", 8, submitted=0, limit_s=SEVEN_HOURS, preemptible=True, grace_s=3600)
    long = job("long", "batch", 8, submitted=0, limit_s=SEVEN_HOURS + 1, preemptible=True, grace_s=3600)

    assert actions(plan_of(night(short))) == {"short": "start"}
    assert actions(plan_of(night(long))) == {}


def test_beside_the_floor_there_is_room_for_what_can_never_leave() -> None:
    jobs = [job(name, "batch", 1, submitted=age - 3, grace_s=3600) for age, name in enumerate(("a", "b", "c"))]
    plan = plan_of(night(*jobs))

    assert actions(plan) == {"a": "start", "b": "start"}
    assert "window" in reasons(plan, "c")


def test_what_cannot_be_gone_is_listed_and_left_alone() -> None:
    held = running("held", [at("n0", 0, 1, 2)], "batch", preemptible=False)
    plan = plan_of(night(held))

    assert actions(plan) == {}
    assert plan["metrics"]["displaced"] == [{"window": "serving", "job": "held"}]


def test_a_window_that_nobody_claims_is_released() -> None:
    unclaimed = {**FLOOR, "start": -7200, "end": 7200, "decay_s": 3600}
    batch = job("batch", "batch", 8, submitted=0, preemptible=True)
    claimed = night(batch, floor=unclaimed)

    assert actions(plan_of(claimed)) == {"batch": "start"}
    assert [share for share in plan_of(claimed)["shares"] if share["quota"].startswith("window:")] == []


def test_an_owners_window_adds_to_its_guarantee_while_it_lasts() -> None:
    window = {"name": "run", "quota": "org/a", "gpus": 8, "start": -60, "end": 3600}
    quotas = [quota("org", 0, limit=4), quota("org/a", 0, parent="org"), quota("other", 0)]
    held = running("held", [at("n0", *range(8))], "other")
    mine = job("mine", "org/a", 8)

    assert actions(plan_of(scene([node("n0")], quotas, [held, mine], reservations=[window]))) == {"held": "evict", "mine": "start"}
    assert actions(plan_of(scene([node("n0")], quotas, [held, mine]))) == {}


@pytest.mark.parametrize("owner", [{"quota": "a"}, {"class": "inference"}])
def test_nothing_protects_work_against_the_start_of_a_window(owner: dict) -> None:
    """Its minimum run time keeps only those safe who came after that; and in the name of the guarantees nobody gains by a window."""
    window = {"name": "run", **owner, "gpus": 8, "start": -60, "end": 3600}
    asked = job("asked", "a", 8, **{"class": "inference"})
    for started, standing, expected in ((-61, 0, {"held": "evict", "asked": "start"}), (-60, 0, {}), (-61, 8, {})):
        held = running("held", [at("n0", *range(8))], "b", started=started)
        tree = [quota("a", standing), quota("b")]
        windows = [] if standing else [window]
        plan = plan_of(scene([node("n0")], tree, [held, asked], reservations=windows, settings={"reclaim_min_runtime_s": 300}))
        assert actions(plan) == expected


def test_what_a_window_lets_one_queue_take_is_protected_from_the_others() -> None:
    """Both look at the same queue in one plan, whichever does so first."""
    window = {"name": "run", "quota": "a", "gpus": 8, "start": -60, "end": 3600}
    held = [running("older", [at("n0", 0, 1)], "c", started=-61), running("newer", [at("n0", 2, 3)], "c", started=-10)]
    asked = [job("mine", "a", 4), job("yours", "b", 4)]
    tree = [quota("a"), quota("b", 4), quota("c")]
    for order in ((0, 1), (1, 0)):
        cycle = Cycle(parse(scene([node("n0")], tree, [*held, *asked], reservations=[window], settings={"reclaim_min_runtime_s": 300})))
        works = [work for work in cycle.cluster.works if work.job.name in ("mine", "yours")]
        found = {}
        for number in order:
            rules = Reclaim(cycle, works[number], 0, works[number].home, 4000)
            found[number] = [unit.work.job.name for _, unit in rules.units(1 << 60)]
        assert found == {0: ["older"], 1: []}


def test_what_the_guarantee_alone_gives_is_no_claim_to_a_window() -> None:
    window = {"name": "run", "quota": "a", "gpus": 4, "start": -60, "end": 3600}
    mine = running("mine", [at("n1", *range(4))], "a")
    held = running("held", [at("n0", *range(4))], "b", started=-61)
    for there, expected in (([], {}), ([mine], {"held": "evict", "asked": "start"})):
        nodes = [node("n0", 4), *[node("n1", 4) for _ in there]]
        jobs = [*there, held, job("asked", "a", 4)]
        plan = plan_of(scene(nodes, [quota("a", 4), quota("b")], jobs, reservations=[window], settings={"reclaim_min_runtime_s": 300}))
        assert actions(plan) == expected


def test_fixed_work_counts_a_window_only_if_it_ends_inside_it() -> None:
    window = {"name": "run", "quota": "q", "gpus": 8, "start": -60, "end": 3600}
    for limit, expected in ((1800, {"fixed": "start"}), (7200, {})):
        fixed = job("fixed", gpus=8, preemptible=False, limit_s=limit)
        assert actions(plan_of(scene([node("n0")], [quota("q", 0)], [fixed], reservations=[window]))) == expected


def test_fixed_work_that_runs_grows_in_a_window_in_which_its_limit_ends() -> None:
    """That began when it started, and not when it grows."""
    window = {"name": "run", "quota": "q", "gpus": 4, "start": -600, "end": 1800}
    for started, expected in ((-1800, {"fixed": "grow"}), (-1799, {})):
        fixed = running("fixed", [at("n0", 0)], least=1, most=4, preemptible=False, limit_s=3600, started=started)
        assert actions(plan_of(scene([node("n0")], [quota("q", 1)], [fixed], reservations=[window]))) == expected


def test_who_runs_on_another_type_is_not_due_or_larger_than_all_of_it_is_no_claim_to_a_window() -> None:
    window = {"name": "run", "quota": "a", "gpus": 8, "gpu_type": H100, "start": -100, "end": 3600, "decay_s": 50}
    nodes = [node("h"), node("a", gpu_type=A100, gpu_memory_gb=40)]
    quotas = [quota("a", {H100: 0, A100: 8}), quota("b", {})]
    elsewhere = running("elsewhere", [at("a", 0)], "a")
    here = running("here", [at("h", 0)], "a")
    waits = job("waits", "a", 9, role={"gpu_types": [A100]})
    later, now, huge = job("later", "a", not_before=600), job("now", "a", 8), job("huge", "a", 9)
    for jobs, released in (([elsewhere, waits], True), ([here], False), ([later], True), ([now], False), ([huge], True)):
        plan = plan_of(scene(nodes, quotas, jobs, reservations=[window]))
        promised = {share["quota"]: share["guaranteed"] for share in plan["shares"] if share["type"] == H100}
        assert promised["a"] == (0 if released else 8)


def released(*jobs: dict, decay: int = 1800) -> bool:
    """Whether a window of a's, which began an hour ago, is a's no more."""
    window = {"name": "run", "quota": "a", "gpus": 8, "gpu_type": H100, "start": -3600, "end": 3600, "decay_s": decay}
    plan = plan_of(scene([node("n0"), node("n1")], [quota("a", 8), quota("b")], [*jobs], reservations=[window]))
    return {share["quota"]: share["guaranteed"] for share in plan["shares"]}["a"] == 8


def test_a_released_window_does_not_come_back() -> None:
    """Whoever is submitted later, whether he waits or runs by now, and also where nobody else waits for the GPUs."""
    late = job("late", "a", 8, 2, submitted=0)
    others = [running(f"other{place}", [at(f"n{place}", *range(8))], "b", started=-3000) for place in range(2)]
    nodes, quotas = [node("n0"), node("n1")], [quota("a", 8), quota("b")]
    window = {"name": "run", "quota": "a", "gpus": 8, "start": -3600, "end": 3600, "decay_s": 1800}

    runs = running("late", [at("n0", *range(8))], "a", started=-1000) | {"submitted": -1100}
    assert released(late) and released({**late, "submitted": -1800}) and released(runs)
    assert actions(plan_of(scene(nodes, quotas, [*others, late], reservations=[window]))) == {}
    plan = plan_of(scene(nodes, quotas, [{**late, "preemptible": False, "limit_s": 100}], reservations=[window]))
    assert actions(plan) == {} and reasons(plan, "late") == {"guarantee"}


def test_a_window_stays_with_who_came_in_time() -> None:
    early = job("early", "a", 8, submitted=-1801)
    gone = {**running("early", [at("n0", *range(8))], "a", started=-1801), "state": "stopping", "until": 60, "submitted": -1900}

    assert not released(early) and not released({**early, "not_before": -1801}) and not released(gone)
    assert not released(running("early", [at("n0", *range(8))], "a", started=-100) | {"submitted": -3600})
    assert released({**early, "not_before": -1800})


def test_a_window_widens_the_limit_of_its_own_type_only() -> None:
    nodes = [node("h"), node("a", gpu_type=A100, gpu_memory_gb=40)]
    window = {"name": "more", "quota": "q", "gpus": 4, "gpu_type": H100, "start": -60, "end": 3600}
    asked = [job("onto-h", gpus=6, role={"gpu_types": [H100]}), job("onto-a", gpus=6, role={"gpu_types": [A100]})]
    plan = plan_of(scene(nodes, [quota("q", 8, limit={H100: 4, A100: 4})], asked, reservations=[window]))

    assert actions(plan) == {"onto-h": "start"}
    assert "limit" in reasons(plan, "onto-a")


def test_a_window_widens_a_limit_over_all_types_by_what_other_types_were_promised() -> None:
    nodes = [node("h"), node("a", gpu_type=A100, gpu_memory_gb=40)]
    window = {"name": "more", "quota": "q", "gpus": 4, "gpu_type": H100, "start": -60, "end": 3600}
    asked = [job("onto-a", gpus=4, role={"gpu_types": [A100]}), job("onto-h", gpus=8, role={"gpu_types": [H100]})]
    plan = plan_of(scene(nodes, [quota("q", {H100: 4, A100: 4}, limit=8)], asked, reservations=[window]))

    assert actions(plan) == {"onto-a": "start", "onto-h": "start"}


def block(name: str, quota_name: str, gpus: int = 8, **fields: object) -> dict:
    return {"name": name, "quota": quota_name, "gpus": gpus, "level": "leaf", "start": 3600, "end": 7200, **fields}


def test_windows_of_a_level_have_a_block_each() -> None:
    quotas = [quota("a"), quota("b"), quota("c", 16)]
    fixed = job("fixed", "c", 8, preemptible=False)
    both = [block("first", "a"), block("second", "b")]

    assert actions(plan_of(scene(leafed(2, 1), quotas, [fixed], reservations=both))) == {}
    assert placed(plan_of(scene(leafed(2, 1), quotas, [fixed], reservations=both[:1])), "fixed") == ["n001"]
    assert placed(plan_of(scene(leafed(3, 1), quotas, [fixed], reservations=both)), "fixed") == ["n002"]
    after = [both[0], block("second", "b", start=7200, end=9000)]
    assert placed(plan_of(scene(leafed(2, 1), quotas, [fixed], reservations=after)), "fixed") == ["n001"]


def test_windows_that_fit_one_block_together_share_it() -> None:
    quotas = [quota("a"), quota("b"), quota("c", 16)]
    both = [block("first", "a", 4), block("second", "b", 4)]

    assert placed(plan_of(scene(leafed(2, 1), quotas, [job("fixed", "c", 8, preemptible=False)], reservations=both)), "fixed") == ["n001"]


def test_the_block_of_a_window_is_not_where_somebody_stays() -> None:
    quotas = [quota("a"), quota("c", 16)]
    held = running("held", [at("n000", *range(8))], "c", preemptible=False)
    fixed = job("fixed", "c", 8, preemptible=False)
    plan = plan_of(scene(leafed(2, 1), quotas, [held, fixed], reservations=[block("first", "a")]))

    assert actions(plan) == {}
    assert "displaced" not in plan["metrics"]
    safe = {**held, "preemptible": True, "started": -60}
    for seconds, where in ((3659, ["n001"]), (3661, [])):
        tree = [quota("a"), quota("c", 16, reclaim_min_runtime_s=seconds)]
        plan = plan_of(scene(leafed(2, 1), tree, [safe, fixed], reservations=[block("first", "a")]))
        assert placed(plan, "fixed") == where
    ends = {**held, "limit_s": 3600}
    assert placed(plan_of(scene(leafed(2, 1), quotas, [ends, fixed], reservations=[block("first", "a")])), "fixed") == ["n001"]


def test_a_block_and_a_floor_on_all_of_a_type_are_kept_beside_each_other() -> None:
    """Three leaves of 8: one is the block, and of the other two the floor needs 12."""
    floor = {"name": "floor", "class": "inference", "gpus": 12, "start": 3600, "end": 7200}
    quotas = [quota("a"), quota("c", 24)]
    for start in (3600, 4000, -60):
        windows = [block("first", "a"), {**floor, "start": start}]
        for gpus, expected in ((4, {"fixed": "start"}), (5, {})):
            asked = job("fixed", "c", gpus, preemptible=False)
            plan = plan_of(scene(leafed(3, 1), quotas, [asked], reservations=windows))
            assert actions(plan) == expected
            if not expected:
                (told,) = [one for one in plan["waiting"][0]["reasons"] if one["code"] == "window"]
                assert told["kept"] == 20


def test_a_block_inside_a_wider_block_is_kept_beside_it() -> None:
    levels = {"levels": ["zone", "leaf"]}
    nodes = [node(f"n{place}", path={"zone": f"z{place // 2}", "leaf": f"l{place}"}) for place in range(4)]
    wide = {**block("wide", "b", 16), "level": "zone"}
    quotas = [quota("a"), quota("b"), quota("c", 32)]
    fixed = job("fixed", "c", 8, preemptible=False)
    plan = plan_of(scene(nodes, quotas, [fixed], reservations=[block("narrow", "a"), wide], topology=levels))
    assert placed(plan, "fixed") == ["n3"], "one zone is the wide block, and of the other one the narrow block is a leaf"

    plan = plan_of(scene(nodes[:2], quotas, [job("fixed", "c", 1, preemptible=False)], reservations=[block("narrow", "a"), wide], topology=levels))
    assert actions(plan) == {}


def test_windows_that_begin_together_get_blocks_that_hold_them_all() -> None:
    """The small one by its name would take the leaf that alone holds the large one."""
    quotas = [quota("a"), quota("b"), quota("c", 16)]
    held = running("held", [at("n001", 0)], "c", preemptible=False)
    windows = [block("first", "a", 1), block("second", "b", 8)]
    for gpus, where in ((6, ["n001"]), (7, [])):
        plan = plan_of(scene(leafed(2, 1), quotas, [held, job("fixed", "c", gpus, preemptible=False)], reservations=windows))
        assert placed(plan, "fixed") == where


def test_who_stands_in_a_window_is_not_in_the_way_of_the_next_one() -> None:
    """What a window holds is kept once, whether or not somebody is there who may use it."""
    floor = {"name": "floor", "class": "inference", "gpus": 8, "start": -60, "end": None}
    soon = {"name": "soon", "quota": "a", "gpus": 8, "start": 3600, "end": 7200}
    serving = running("serving", [at("n0", *range(8))], "s", preemptible=False, **{"class": "inference"})
    quotas = [quota("a"), quota("c", 16), quota("s", 0)]
    nodes = [node("n0"), node("n1"), node("n2")]
    plan = plan_of(scene(nodes, quotas, [serving, job("fixed", "c", 8, preemptible=False)], reservations=[floor, soon]))
    assert actions(plan) == {"fixed": "start"}
    assert "displaced" not in plan["metrics"]

    more = job("more", "s", 8, preemptible=False, **{"class": "inference"})
    plan = plan_of(scene(nodes[1:], quotas, [more, job("fixed", "c", 1, preemptible=False)], reservations=[floor, soon]))
    assert actions(plan) == {"more": "start"}, "what it holds is what the floor keeps"
    assert "window" in reasons(plan, "fixed")


def test_what_is_moved_has_its_whole_limit_before_it_when_a_window_begins() -> None:
    """It would be gone by its old limit; in its new place that begins anew."""
    held = running("held", [at("n0", 0)], "c", limit_s=3700, started=-200, grace_s=3600)
    asked = job("asked", "c", 8)
    quotas = [quota("a"), quota("c", 16)]
    soon = {"name": "soon", "quota": "a", "gpus": 8, "start": 3600, "end": 7200}
    nodes = [node("n0"), node("n1", 8), node("n2", 7)]
    full = running("full", [at("n1", *range(8))], "c", limit_s=600)
    assert actions(plan_of(scene(nodes, quotas, [held, full, asked]))) == {"held": "move", "asked": "start"}
    assert actions(plan_of(scene(nodes, quotas, [held, full, asked], reservations=[{**soon, "gpus": 15}]))) == {"held": "move", "asked": "start"}
    assert actions(plan_of(scene(nodes, quotas, [held, full, asked], reservations=[{**soon, "gpus": 23}]))) == {}


def test_no_place_is_kept_for_who_would_not_be_let_in_then() -> None:
    """What is idle until a window begins serves whoever is gone by then."""
    on_all = {"name": "floor", "class": "inference", "gpus": 8, "start": 3600, "end": 7200}
    for window in (on_all, block("first", "a")):
        stays = job("stays", gpus=8, preemptible=False, submitted=-90)
        short = job("short", gpus=8, limit_s=600, preemptible=False, submitted=-50)
        plan = plan_of(scene(leafed(1, 1), [quota("q", 16), quota("a")], [stays, short], reservations=[window]))
        assert [(one["action"], one["job"]) for one in plan["decisions"]] == [("start", "short")]
        assert [one["predicted_start"] for one in plan["waiting"]] == ["2026-11-20T10:00:00Z"], "nobody keeps him out once it has begun"

        alone = plan_of(scene(leafed(1, 1), [quota("q", 8), quota("a")], [stays], reservations=[window]))
        assert alone["decisions"] == []
        assert "window" in reasons(alone, "stays")


def test_who_must_stay_off_a_block_takes_from_those_outside_it() -> None:
    """Who loses least stands in the block, where it would find no place."""
    inside = running("inside", [at("n000", *range(8))], "c", limit_s=1000)
    outside = running("outside", [at("n001", *range(8))], "c", limit_s=1000, started=-500)
    stays = job("stays", "b", 8, preemptible=False)
    plan = plan_of(scene(leafed(2, 1), [quota("a"), quota("b", 8), quota("c")], [inside, outside, stays], reservations=[block("first", "a")]))

    assert actions(plan) == {"outside": "evict", "stays": "start"}


@pytest.mark.parametrize("low", ["b", "c"])
def test_who_is_gone_in_time_takes_what_one_alike_may_not(low: str) -> None:
    """Two of one shape, the first of which would stay: what it was told holds for those that stay as well."""
    floor = {"name": "floor", "class": "inference", "gpus": 8, "start": 3600, "end": 7200}
    held = [running(f"h{place}", [at("n0", place)], low, limit_s=1000) for place in range(8)]
    stays = job("stays", "b", 4, submitted=-200, grace_s=600, priority=9)
    short = job("short", "b", 4, submitted=-100, grace_s=600, priority=9, limit_s=600)
    plan = plan_of(scene([node("n0")], [quota("b", 8), quota("c")], [*held, stays, short], reservations=[floor]))

    assert actions(plan)["short"] == "start"
    assert "window" in reasons(plan, "stays")


def test_a_window_is_told_beside_the_lack_of_room() -> None:
    floor = {"name": "floor", "class": "inference", "gpus": 8, "start": 3600, "end": 7200}
    held = running("held", [at("n0", *range(8))], limit_s=600)
    plan = plan_of(scene([node("n0")], [quota("q", 16)], [held, job("stays", gpus=8, preemptible=False)], reservations=[floor]))

    assert {"capacity", "window"} <= reasons(plan, "stays")
    assert [one["predicted_start"] for one in plan["waiting"]] == ["2026-11-20T10:00:00Z"]


def foreseen_and_true(scenario: dict, name: str) -> tuple[str | None, str | None]:
    """When a waiting job is predicted to start, and when it starts in a simulation."""
    (predicted,) = [one["predicted_start"] for one in plan_of(scenario)["waiting"] if one["job"] == name]
    world = World(parse(scenario))
    world.run(world.now + 48 * 3_600_000)
    started = world.lives[name].first_start
    return predicted, None if started is None else spell_instant(started)


@pytest.mark.parametrize("roles", [[{"min": 1, "gpus": 8}], [{"name": "a", "min": 1, "gpus": 4}, {"name": "b", "min": 1, "gpus": 4}]])
@pytest.mark.parametrize(
    ("windows", "other", "expected"),
    [
        ([block("first", "a")], 24 * 3600, "2026-11-20T10:00:00Z"),  # the block is open again as soon as its window has begun
        ([block("first", "a"), block("second", "a", start=7200, end=9000)], 24 * 3600, "2026-11-20T11:00:00Z"),
        ([block("first", "a", start=23 * 3600, end=24 * 3600)], 600, "2026-11-20T09:10:00Z"),  # beside the block there is room long before
        ([block("first", "a"), block("second", "a", start=23 * 3600, end=24 * 3600)], 7200, "2026-11-20T11:00:00Z"),
    ],
)
def test_a_start_is_predicted_beside_the_block_of_a_window_or_once_it_has_begun(roles: list, windows: list, other: int, expected: str) -> None:
    held = running("held", [at("n001", *range(8))], "c", limit_s=other, work_s=other, started=0, preemptible=False)
    fixed = job("fixed", "c", preemptible=False, work_s=3600) | {"roles": roles}

    made = scene(leafed(2, 1), [quota("a"), quota("c", 32)], [held, fixed], reservations=windows)
    assert foreseen_and_true(made, "fixed") == (expected, expected)


def test_whom_only_his_limits_refuse_is_expected_when_a_window_widens_them() -> None:
    """As soon as what counts against them then leaves him in; another queue's window, or one that is too small, helps nobody."""
    window = {"name": "run", "quota": "a", "gpus": 4, "start": 1000, "end": 5000}
    asks, other = job("asks", "a", 8), running("other", [at("n1", 0)], "a", limit_s=3600, started=0)
    tree = [quota("a", 4, limit=4), quota("b", 4)]
    for windows, jobs, minute in (
        ([window], [asks], "09:16:40"),
        ([{**window, "name": "small", "gpus": 2}, {**window, "start": 2000}], [asks], "09:33:20"),
        ([window], [asks, other], "10:00:00"),
        ([{**window, "gpus": 3}], [asks], None),
        ([{**window, "quota": "b"}], [asks], None),
    ):
        plan = plan_of(scene([node("n0"), node("n1")], tree, jobs, reservations=windows))
        assert [one["predicted_start"] for one in plan["waiting"]] == [minute and f"2026-11-20T{minute}Z"]
        assert reasons(plan, "asks") == {"limit"}


def test_who_is_kept_out_by_one_window_after_the_other_is_expected_when_the_last_one_has_begun() -> None:
    first = {"name": "first", "quota": "a", "gpus": 4, "start": 1000, "end": 5000}
    second = {**first, "name": "second", "start": 2500}
    slow = job("slow", "b", 8, grace_s=700)
    for windows, limit, minute in (([first], 99_999, "16:40"), ([first, second], 99_999, "41:40"), ([first, second], 1001, "16:40")):
        tree, asks = [quota("a", 4), quota("b", 4)], {**slow, "limit_s": limit}
        plan = plan_of(scene([node("n0")], tree, [asks], reservations=[{**one, "notice_s": 600} for one in windows]))
        assert [one["predicted_start"] for one in plan["waiting"]] == [f"2026-11-20T09:{minute}Z"]
        assert plan["decisions"] == []


def test_behind_a_window_that_has_begun_by_then_a_place_is_kept() -> None:
    floor = {"name": "floor", "class": "inference", "gpus": 4, "start": 3600, "end": 7200}
    held = running("held", [at("n0", *range(8))], limit_s=9000, started=0)
    plan = plan_of(scene([node("n0")], [quota("q", 16)], [held, job("next", gpus=8, preemptible=False)], reservations=[floor]))

    assert [(one["action"], one["at"]) for one in plan["decisions"]] == [("reserve", "2026-11-20T11:30:00Z")]


def test_a_place_is_kept_beside_the_block_of_a_window() -> None:
    held = [
        running("one", [at("n001", *range(8))], "c", limit_s=600, started=0),
        running("two", [at("n000", *range(8))], "c", limit_s=300, started=0),
    ]
    quotas = [quota("a"), quota("c", 32)]
    plan = plan_of(scene(leafed(2, 1), quotas, [*held, job("next", "c", 8, preemptible=False)], reservations=[block("first", "a")]))

    (kept,) = plan["decisions"]
    assert (kept["at"], [worker["node"] for worker in kept["workers"]]) == ("2026-11-20T09:10:00Z", ["n001"])


def test_a_window_that_nobody_claims_yet_is_not_released_before_its_time() -> None:
    window = {"name": "run", "quota": "a", "gpus": 8, "start": -100, "end": 3600}
    for decay, released in ((50, True), (200, False)):
        plan = plan_of(scene([node("n0")], [quota("a"), quota("b")], [job("other", "b", 8)], reservations=[{**window, "decay_s": decay}]))
        promised = {share["quota"]: share["guaranteed"] for share in plan["shares"]}
        assert promised["a"] == (0 if released else 8)


def on_a_floor(gpus: int, standing: int, *more: dict, **fields: Any) -> dict:
    """An inference job that stands with so many workers on the floor of its class, and may use what is idle beside it."""
    floor = {"name": "floor", "class": "inference", "gpus": gpus, "start": -3600, "end": None}
    elastic = running("served", [at("n0", gpu) for gpu in range(standing)], **fields) | {"class": "inference"}
    return scene([node("n0")], [quota("q", 0)], [elastic, *more], reservations=[floor])


@pytest.mark.parametrize("gpus", [3, 4])
def test_a_gang_on_a_class_window_is_made_whole(gpus: int) -> None:
    """Of a floor too small for its minimum it is not charged to it; from a larger one nobody takes what it lacks."""
    other = running("other", [at("n0", 4, 5)]) | {"class": "inference"}

    assert actions(plan_of(on_a_floor(gpus, 2, other, least=4, degraded_since=-10))) == {"served": "repair"}


def test_an_elastic_job_grows_beyond_a_class_window() -> None:
    """Then all of it is charged to its own queue."""
    plan = plan_of(on_a_floor(2, 2, most=6))

    assert actions(plan) == {"served": "grow"}
    assert len(placed(plan, "served")) == 6
    assert {share["quota"]: share["used"] for share in plan["shares"]} == {"q": 6.0, "window:floor": 0.0}
