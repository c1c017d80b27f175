"""Every law over the scenarios that are about one thing each."""

from collections import Counter

import pytest

from .colocated import colocated_random, measured_random
from .focused import ahead_random, growth_random, lost_random, promised_random, split_random, step_random, thinned_random, window_random
from .laws import LAWS
from .planner import plan_of
from .powered import powered_random

fixed_seeds = pytest.mark.parametrize("seeds", [pytest.param(range(15), id="few"), pytest.param(range(15, 130), id="more", marks=pytest.mark.soak)])
# Seeds beyond the fixed set that once broke a law.
ONCE_FAILED_LOST = [155, 182, 202, 221, 287, 363, 529, 675, 967, 993, 1184, 1326, 10169, 10882, 11325, 11352, 11462, 12123, 31083, 1700800038]
ONCE_FAILED_THINNED = [50083, 50695]
ONCE_FAILED_SPLIT = [575]
ONCE_FAILED_STEP = [245, 261128074]
ONCE_FAILED_AHEAD = [104, 124, 187, 193, 227, 229, 243, 252, 273, 288, 571, 1081, 1868, 2252]
ONCE_FAILED_WINDOW = [141, 148, 171, 186, 211, 229, 253, 258, 315, 334, 347, 371, 374, 385, 261128088]


def with_those(seeds: range, once_failed: list[int]) -> list[int]:
    """The few of the suite go with all that once failed; the soak, which runs beside it, need not plan them again."""
    return [*seeds, *once_failed] if 0 in seeds else [*seeds]


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_growth_at_the_cost_of_others_keeps_every_law(law: str, seeds: range):
    for seed in seeds:
        assert LAWS[law](growth_random(seed)) == [], f"growth_random({seed})"


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_jobs_that_have_lost_workers_keep_every_law(law: str, seeds: range):
    for seed in with_those(seeds, ONCE_FAILED_LOST):
        assert LAWS[law](lost_random(seed)) == [], f"lost_random({seed})"


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_anything_with_workers_lost_keeps_every_law(law: str, seeds: range):
    for seed in with_those(seeds, ONCE_FAILED_THINNED):
        assert LAWS[law](thinned_random(seed)) == [], f"thinned_random({seed})"


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_boards_that_are_split_anew_keep_every_law(law: str, seeds: range):
    for seed in with_those(seeds, ONCE_FAILED_SPLIT):
        assert LAWS[law](split_random(seed)) == [], f"split_random({seed})"


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_power_caps_keep_every_law(law: str, seeds: range):
    for seed in seeds:
        assert LAWS[law](powered_random(seed)) == [], f"powered_random({seed})"


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_neighbours_of_services_keep_every_law(law: str, seeds: range):
    for seed in seeds:
        assert LAWS[law](colocated_random(seed)) == [], f"colocated_random({seed})"


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_neighbours_that_broke_a_service_level_keep_every_law(law: str, seeds: range):
    for seed in seeds:
        assert LAWS[law](measured_random(seed)) == [], f"measured_random({seed})"


def test_the_scenarios_about_neighbours_of_services_refuse_some_and_let_others_in():
    """Else the law above would be kept by doing nothing."""
    met: Counter[str] = Counter()
    wanted = Counter(colocation=15, evict=5, start=30)
    for seed in range(80):
        plan = plan_of(colocated_random(seed))
        met.update(one["code"] for entry in plan["waiting"] for one in entry["reasons"])
        met.update(one["action"] for one in plan["decisions"])
        if met >= wanted:
            return

    pytest.fail(f"in 80 plans {met}")


def test_the_scenarios_about_split_boards_evict_for_a_new_layout():
    """Else the laws above would be kept by doing nothing."""
    after_others, whole_again = 0, 0
    for seed in range(150):
        decisions = [one for one in plan_of(split_random(seed))["decisions"] if one["action"] == "repartition"]
        after_others += sum(bool(one["after"]) for one in decisions)
        whole_again += sum(not one["instances"] for one in decisions)
        if min(after_others, whole_again) >= 10:
            return

    pytest.fail(f"{after_others} after others, {whole_again} whole again, in 150 plans")


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_steps_of_fairness_keep_every_law(law: str, seeds: range):
    for seed in with_those(seeds, ONCE_FAILED_STEP):
        assert LAWS[law](step_random(seed)) == [], f"step_random({seed})"


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_windows_of_classes_keep_every_law(law: str, seeds: range):
    for seed in with_those(seeds, ONCE_FAILED_WINDOW):
        assert LAWS[law](window_random(seed)) == [], f"window_random({seed})"


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_windows_to_come_keep_every_law(law: str, seeds: range):
    for seed in with_those(seeds, ONCE_FAILED_AHEAD):
        assert LAWS[law](ahead_random(seed)) == [], f"ahead_random({seed})"


def test_the_scenarios_about_windows_to_come_keep_somebody_out():
    """Else the laws above would be kept by doing nothing."""
    kept_out = 0
    for seed in range(100):
        made = ahead_random(seed)
        now = {**made, "reservations": [window for window in made["reservations"] if window["start"] <= 0]}
        plan = plan_of(made)
        kept_out += any(one["code"] == "window" for waiting in plan["waiting"] for one in waiting["reasons"]) and (
            plan["decisions"] != plan_of(now)["decisions"]
        )
        if kept_out >= 5:
            return

    pytest.fail(f"{kept_out} of 100")


@pytest.mark.parametrize("law", sorted(LAWS))
@fixed_seeds
def test_promises_whose_time_is_up_keep_every_law(law: str, seeds: range):
    for seed in seeds:
        assert LAWS[law](promised_random(seed)) == [], f"promised_random({seed})"


def test_places_whose_promise_has_lapsed_are_given_to_others():
    """Else the laws above would be kept by doing nothing."""
    taken = 0
    for seed in range(120):
        made = promised_random(seed)
        lapsed = {
            (worker["node"], gpu): job["name"]
            for job in made["jobs"]
            if job.get("state") in ("reserved", "starting") and job["until"] <= 0 and not job.get("leaving")
            for worker in job["workers"]
            for gpu in worker["gpus"]
        }
        starts = [one for one in plan_of(made)["decisions"] if one["action"] == "start"]
        places = ((one["job"], worker["node"], gpu) for one in starts for worker in one["workers"] for gpu in worker["gpus"])
        taken += any(lapsed.get((node, gpu), name) != name for name, node, gpu in places)
        if taken >= 10:
            return

    pytest.fail(f"{taken} of 120")


def test_the_scenarios_about_windows_take_back_in_their_name():
    """Else the laws above would be kept by doing nothing."""
    taken = 0
    for seed in range(100):
        decisions = [one for one in plan_of(window_random(seed))["decisions"] if one["action"] in ("evict", "shrink")]
        taken += sum("window:" in one["why"]["detail"] for one in decisions)
        if taken >= 5:
            return

    pytest.fail(f"{taken} in 100 plans")


def test_the_scenarios_about_steps_spare_somebody():
    """Else the laws above would be kept by doing nothing."""
    spared = 0
    for seed in range(150):
        made = step_random(seed)
        without = {**made, "settings": {**made["settings"], "fairness": {**made["settings"]["fairness"], "step_s": None}}}
        spared += plan_of(made)["decisions"] != plan_of(without)["decisions"]
        if spared >= 3:
            return

    pytest.fail(f"{spared} of 150")


def test_the_scenarios_about_growth_meet_it():
    """Else the laws above would be kept by doing nothing."""
    taken = 0
    for seed in range(60):
        decisions = plan_of(growth_random(seed))["decisions"]
        grows = {one["job"] for one in decisions if one["action"] == "grow"}
        taken += any(one["action"] == "shrink" and one["why"].get("for") in grows for one in decisions)
        if taken >= 10:
            return

    pytest.fail(f"{taken} of 60")
