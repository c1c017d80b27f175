"""Who must leave for a window: by the engine's own rules, on the fleet as it will be."""

from typing import Any

from scheduler.scenarios.reading import parse
from scheduler.snapshots.jobs import Kinds
from scheduler.windows.clearing import Clearing, clearing_of
from tests.scheduler.engine.scenes import A100, H100, at, leafed, node, quota, running, scene

FLOOR = {"name": "r-1", "class": "inference", "gpus": 6, "gpu_type": H100, "start": 3600, "end": 7200, "notice_s": 600}
OWNED = FLOOR | {"class": None, "quota": "serve"}


def found(nodes: list[dict[str, Any]], quotas: list[dict[str, Any]], jobs: list[dict[str, Any]], window: dict[str, Any]) -> Clearing:
    scenario = parse(scene(nodes, quotas, jobs, reservations=[window]))
    return clearing_of(scenario, scenario.windows, Kinds(scenario.topology))


def test_a_borrower_leaves_for_a_floor() -> None:
    night = running("night", [at("n0", *range(8))], "batch")
    clearing = found([node("n0")], [quota("batch"), quota("serve")], [night], FLOOR)

    assert [leaver.job for leaver in clearing.leavers] == ["night"]
    assert clearing.is_met
    assert clearing.used == clearing.idle == 0


def test_what_is_idle_needs_nobody_to_leave() -> None:
    small = running("small", [at("n0", 0, 1)], "batch")
    clearing = found([node("n0")], [quota("batch"), quota("serve")], [small], OWNED)

    assert clearing.leavers == ()
    assert clearing.idle == 6000
    assert clearing.is_met


def test_nobody_inside_a_guarantee_leaves_and_the_lack_is_told() -> None:
    safe = running("safe", [at("n0", *range(8))], "batch")
    clearing = found([node("n0")], [quota("batch", 8), quota("serve")], [safe], OWNED)

    assert clearing.leavers == ()
    assert clearing.missing == 6000
    assert clearing.displaced == ("safe",)


def test_only_jobs_on_the_type_of_the_window_are_in_its_way() -> None:
    """The larger job holds none of the GPUs that the window lacks; the gang counts with its part."""
    elsewhere = running("elsewhere", [at("a0", *range(8))], "batch")
    gang = running("gang", [at("a1", 0, 1, 2), at("a1", 3, 4, 5), at("n0", 0, 1, 2)], "batch")
    safe = running("safe", [at("n0", 3, 4, 5, 6, 7)], "batch")
    nodes = [node("n0"), node("a0", gpu_type=A100), node("a1", gpu_type=A100)]
    clearing = found(nodes, [quota("batch", {H100: 8, A100: 16}), quota("serve", {})], [elsewhere, gang, safe], OWNED)

    assert clearing.missing == 6000
    assert clearing.displaced == ("safe", "gang")


def test_what_its_limit_ends_before_is_gone_by_itself() -> None:
    short = running("short", [at("n0", *range(8))], "batch", limit_s=1800)
    clearing = found([node("n0")], [quota("batch"), quota("serve")], [short], FLOOR)

    assert clearing.leavers == ()
    assert clearing.idle == 6000


def test_the_owner_keeps_what_he_borrows_as_part_of_the_window() -> None:
    own = running("own", [at("n0", 0, 1, 2, 3)], "serve")
    night = running("night", [at("n1", *range(8))], "batch")
    clearing = found([node("n0"), node("n1")], [quota("batch"), quota("serve")], [own, night], OWNED)

    assert clearing.used == 4000
    assert clearing.idle == 2000
    assert clearing.is_met


def test_a_class_that_serves_already_needs_only_the_rest() -> None:
    serving = running("serving", [at("n0", 0, 1, 2, 3)], "serve", **{"class": "inference"})
    night = running("night", [at("n0", 4, 5, 6, 7)], "batch")
    clearing = found([node("n0")], [quota("batch"), quota("serve")], [serving, night], FLOOR)

    assert clearing.used == 4000
    assert [leaver.job for leaver in clearing.leavers] == ["night"]
    assert clearing.is_met


def test_a_block_is_cleared_in_one_domain() -> None:
    jobs = [running(f"j{number}", [at(f"n{number:03d}", 0, 1, 2, 3)], "batch") for number in range(4)]
    clearing = found(leafed(4), [quota("batch"), quota("serve")], jobs, OWNED | {"gpus": 16, "level": "leaf"})

    assert len(clearing.leavers) == 2
    assert clearing.is_met
    assert {leaver.job for leaver in clearing.leavers} in ({"j0", "j1"}, {"j2", "j3"})
