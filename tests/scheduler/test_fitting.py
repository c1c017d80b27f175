"""What one is told before submitting: when, where, under which quota, at what cost, and what would start it sooner."""

import re
from dataclasses import replace
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.template.loader import render_to_string
from django.test.utils import CaptureQueriesContext

from gpufleet.core.audit import SYSTEM
from gpufleet.core.times import now
from quotas.models import Budget, BudgetDay, LedgerEntry, QuotaNode, QuotaShare
from quotas.permissions import Access
from quotas.services.budgets import budget_create
from scheduler.engine.model.plan import Decision
from scheduler.engine.model.reasons import Reason
from scheduler.jobs.template_rules import SHIPPED_BY_REF
from scheduler.models import Job
from scheduler.presenters.fitting import fit_view
from scheduler.selectors.templates import templates_visible
from scheduler.services.forecasts import fitting, grounds, presets
from scheduler.services.forecasts.fitting import Fit, fit_of
from scheduler.services.forecasts.presets import PresetFits, preset_fits
from scheduler.services.forecasts.proposals import changed
from scheduler.services.jobs.submission import submission_create, submissions_check
from scheduler.services.jobs.template_speeds import speeds_state
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import H100, Loop, submit

pytestmark = pytest.mark.django_db
PATH = "acme/research/nlp"


def promise(personas: Any, path: str, guaranteed: int, limit: int | None = None) -> None:
    QuotaShare.objects.create(
        node=personas.nodes[path], gpu_type=H100, guaranteed_milli=1000 * guaranteed, limit_milli=None if limit is None else 1000 * limit
    )


def fit(access: Access, at: Any = NOON, **description: Any) -> Fit:
    grounds.GROUNDS.forget()
    return told(access, {"name": "train", "quota": PATH, "gpus": 8} | description, at)


def told(access: Access, description: dict[str, Any], at: Any) -> Fit:
    found = fit_of(access=access, description=description, now=at)
    assert found is not None, "it is read within the patience"
    return found


@pytest.fixture
def two_nodes(personas: Any) -> Any:
    builders.node("n1", gpus=8)
    builders.node("n2", gpus=8)
    for path, share in (("acme", 16), ("acme/research", 8), ("acme/product", 8), ("acme/research/nlp", 8), ("acme/product/search", 8)):
        promise(personas, path, share)
    return personas


def run(personas: Any, path: str, **fields: Any) -> Job:
    """A job that runs on eight GPUs since noon."""
    loop = Loop()
    made = submit(personas.nodes[path], gpus=8, **fields)
    loop.tick()
    loop.up(made)
    return made


def test_what_fits_starts_now_in_its_guarantee_and_is_shown_where(two_nodes):
    found = fit(two_nodes.access("submitter"))

    assert (found.verdict, found.at, found.guaranteed, found.gpus_milli) == ("now", NOON, True, 8000)
    assert len(found.stands) == 1
    view = fit_view(found, two_nodes.access("submitter"), {found.stands[0].node: 8})
    assert view.quota == f"Guaranteed: 8 of 8 guaranteed {H100} GPUs of {PATH} would be in use."
    assert [(place.node, place.devices, sum(cell.state == "held" for cell in place.cells)) for place in view.places] == [("n1", "GPU 0–7", 8)]
    assert not found.changes
    assert not Job.objects.exists()


def test_beyond_the_guarantee_it_is_told_who_could_take_it_back_and_names_nobody_unseen(two_nodes):
    run(two_nodes, PATH, limit_seconds=7200)

    found = fit(two_nodes.access("submitter"), gpus=8)

    assert (found.verdict, found.guaranteed) == ("now", False)
    assert fit_view(found, two_nodes.access("operator"), {}).takers.startswith("acme/product could take it back")
    assert fit_view(found, two_nodes.access("submitter"), {}).takers.startswith("Another team could take it back")
    assert fit_view(found, two_nodes.access("submitter"), {}).quota == f"Borrowed: {PATH} would use 16 {H100} GPUs, of which 8 guaranteed."


@pytest.mark.parametrize(
    ("asks", "guaranteed"),
    [({}, False), ({"priority": 60}, True), ({"priority": 40}, False), ({"class": "interactive"}, True)],
)
def test_what_it_is_told_of_its_guarantee_is_what_it_then_stands_on(two_nodes, asks, guaranteed):
    """Eight of eight are used. What is higher stands before that, which borrows from then on."""
    loop = Loop()
    first = submit(two_nodes.nodes[PATH], gpus=8, limit_seconds=7200)
    loop.tick()
    loop.up(first)

    found = fit(two_nodes.access("submitter"), **asks)
    view = fit_view(found, two_nodes.access("submitter"), {})
    wish = {"name": "train", "quota": PATH, "gpus": 8} | asks
    (made,) = submission_create(access=two_nodes.access("submitter"), description=wish, now=loop.after(seconds=1).now, actor=SYSTEM)
    loop.tick()

    assert found.verdict == "now"
    assert found.guaranteed is guaranteed
    assert (LedgerEntry.objects.get(job=made.public_id).share_class == "guaranteed") is guaranteed
    if guaranteed:
        within = f"within the 8 {H100} GPUs that {PATH} is guaranteed, before lower work there, which then borrows (16 would be in use)"
        assert view.quota == f"Guaranteed: {within}."
        assert "could take it back" not in view.takers
    else:
        assert view.quota.startswith("Borrowed: ")


def test_numbers_of_nodes_above_are_told_to_those_who_see_them(two_nodes):
    """Eight of the department's eight are used by a team that the submitter does not see."""
    run(two_nodes, "acme/research/vision", limit_seconds=7200)
    for asks, mine, theirs in (
        ({}, "more than is guaranteed is in use above it.", "acme/research is at its guarantee of 8."),
        ({"priority": 60}, f"within all guarantees above {PATH} as well", "that acme/research is guaranteed"),
    ):
        found = fit(two_nodes.access("submitter"), **asks)
        assert mine in fit_view(found, two_nodes.access("submitter"), {}).quota
        assert theirs in fit_view(found, two_nodes.access("operator"), {}).quota


def test_what_becomes_of_others_is_counted_where_they_are_not_named(two_nodes):
    theirs = [run(two_nodes, "acme/product/search") for _ in range(2)]
    why = Reason("reclaim", "taken back", {})
    others = (*(Decision("evict", why, job.public_id) for job in theirs), Decision("grow", why, theirs[0].public_id))
    found = replace(fit(two_nodes.access("submitter")), others=others, guaranteed=False, claimants=("acme/product", "acme/product/search", PATH))

    submitter, operator = (fit_view(found, two_nodes.access(who), {}) for who in ("submitter", "operator"))

    assert submitter.others == ("2 jobs of other teams are preempted.", "Another job grows.")
    assert operator.others == (*(f"{job.public_id} is preempted." for job in theirs), f"{theirs[0].public_id} grows.")
    assert submitter.takers.startswith(f"Another team and {PATH} could take it back")
    assert operator.takers.startswith(f"acme/product, acme/product/search and {PATH} could take it back")


def test_what_has_to_wait_is_told_until_when_and_what_would_start_it_sooner(two_nodes):
    run(two_nodes, PATH, limit_seconds=7200)

    found = fit(two_nodes.access("submitter"), workers=2, limit_s=600)

    assert found.verdict == "later"
    assert found.at is not None
    assert NOON + timedelta(hours=1) < found.at <= NOON + timedelta(hours=2), "it may end before its limit, and never later"
    assert found.earliest is not None
    assert found.latest is not None
    assert NOON <= found.earliest < found.at < found.latest < NOON + timedelta(seconds=18_000), "narrower than what estimates alone say"
    assert [reason["code"] for reason in found.reasons] == ["capacity", "share"]
    assert [(one.path, one.to, one.now) for one in found.changes] == [("workers", 1, True)]
    assert found.nodes and not found.stands
    said = fit_view(found, two_nodes.access("submitter"), {}).quota
    assert said.startswith(f"At present, borrowed: {PATH} would use 24"), "until then others end"


def test_a_date_that_has_come_since_the_fleet_was_read_is_no_start(two_nodes):
    """What it waits for should have ended by now, and nobody has seen that it has."""
    run(two_nodes, PATH, limit_seconds=3)
    assert fit(two_nodes.access("submitter"), workers=2).verdict == "later"

    later = NOON + timedelta(seconds=4)
    found = told(two_nodes.access("submitter"), {"name": "train", "quota": PATH, "gpus": 8, "workers": 2}, later)
    assert (found.as_of, found.verdict, bool(found.reasons)) == (NOON, "later", True)
    assert found.at is not None
    assert found.latest is not None
    assert later <= found.at < found.latest
    assert [(one.path, one.to, one.now) for one in found.changes] == [("workers", 1, True)]


def test_what_starts_no_sooner_is_not_proposed(two_nodes):
    run(two_nodes, "acme/product/search", spec={"grace_s": 60})
    run(two_nodes, "acme/product/search", spec={"grace_s": 60})

    found = fit(two_nodes.access("submitter"), at=NOON + timedelta(minutes=10), gpus=8, preemptible=False, gpu_types=[H100])

    assert found.verdict == "soon", "once those have left who have no right to the place"
    assert found.changes == (), "on another type, or as preemptible work, it would wait for the same to leave"


def test_what_no_node_can_hold_is_proposed_as_a_node_can(two_nodes):
    found = fit(two_nodes.access("submitter"), gpus=64)

    assert found.verdict == "never"
    assert [(one.path, one.to, one.now) for one in found.changes] == [("gpus", 8, True)]
    run(two_nodes, PATH, limit_seconds=7200)
    run(two_nodes, PATH, limit_seconds=7200)
    assert [(one.path, one.to, one.now) for one in fit(two_nodes.access("submitter"), gpus=64).changes] == [("gpus", 8, False)]


def test_not_before_a_hold_and_jobs_ahead_keep_it_whatever_is_free(two_nodes):
    other = builders.job(on=two_nodes.nodes[PATH])
    later = NOON + timedelta(hours=3)

    assert (fit(two_nodes.access("submitter"), not_before=later.isoformat()).at) == later
    assert fit(two_nodes.access("submitter"), hold=True).waits_for == ("It is held until it is released.",)
    held = fit(two_nodes.access("submitter"), after=[{"job": other.public_id}])
    assert (held.verdict, held.waits_for) == ("held", (f"It waits for {other.public_id}.",))


def test_what_can_never_start_says_why(two_nodes):
    found = fit(two_nodes.access("submitter"), workers=40)

    assert (found.verdict, found.at) == ("never", None)
    assert [reason["code"] for reason in found.reasons] == ["empty_fleet"]
    assert [(one.path, one.to, one.now) for one in found.changes] == [("workers", 2, True)]


def test_the_cost_is_for_those_who_see_costs(two_nodes):
    builders.rate(H100, since=NOON - timedelta(days=1), micros=2_000_000)
    wish = {"estimate_s": 1800, "limit_s": 3600, "array": {"size": 5}}

    lead = fit(two_nodes.access("team_lead"), **wish)
    assert (lead.cost_micros, lead.limit_cost_micros, lead.count) == (8_000_000, 16_000_000, 5)
    assert fit(two_nodes.access("submitter"), **wish).cost_micros is None

    def shown(found: Fit) -> str:
        return render_to_string("scheduler/_fit.html", {"view": {"fit": found, "tone": "good", "icon": "clock"}})

    endless, unpriced = fit(two_nodes.access("team_lead")), fit(two_nodes.access("submitter"))
    assert (endless.cost_micros, endless.hourly_micros) == (None, 16_000_000), "without a length there is no sum"
    assert "<strong>$16.00</strong> an hour on 8 GPUs." in re.sub(r"\s", " ", shown(endless))
    assert "You cannot view prices." in shown(unpriced)


def test_faults_and_rights_are_those_of_a_submission(two_nodes):
    with pytest.raises(ValidationError) as refused:
        fit(two_nodes.access("submitter"), gpus=99, gpu_types=["B900"], quota="acme/product/search")
    assert set(refused.value.message_dict) == {"gpus", "gpu_types", "quota"}
    with pytest.raises(ValidationError, match="You may not submit"):
        fit(two_nodes.access("viewer"))


def test_over_http_it_is_the_same_and_writes_nothing(two_nodes):
    client = two_nodes.client("submitter")
    answer = client.post("/api/v1/fit", {"name": "a", "quota": PATH, "gpus": 4}, content_type="application/json")

    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert (told["verdict"], told["places"], told["guaranteed"]) == ("now", [{"node": "n1", "gpus": 4}], True)
    assert client.post("/api/v1/fit", {"name": "a"}, content_type="application/json").status_code == 422
    assert not Job.objects.exists()


def test_a_value_is_changed_at_its_path_and_nowhere_else():
    raw = {"roles": [{"min": 4}, {"min": 1}], "topology": {"required": "leaf", "preferred": "node"}, "gpus": 1}

    assert changed(raw, "roles[0].min", 2) == raw | {"roles": [{"min": 2}, {"min": 1}]}
    assert changed(raw, "topology.required", None) == raw | {"topology": {"preferred": "node"}}
    assert changed({}, "checkpoint.interval_s", 5) == {"checkpoint": {"interval_s": 5}}


def test_an_old_fleet_serves_on_while_it_is_read_anew(two_nodes, monkeypatch):
    """Who asks never waits for the reading, and what is minutes old is told to nobody."""
    access = two_nodes.access("submitter")
    wish = {"name": "a", "quota": PATH, "gpus": 8}
    first = told(access, wish, NOON)
    asked = []
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda grounds, at: asked.append(at))  # as if it took long
    monkeypatch.setattr(grounds, "PATIENCE_SECONDS", 0.01)

    submit(two_nodes.nodes[PATH])  # asks the loop for a plan, but none was made yet
    assert told(access, wish, NOON + timedelta(seconds=10)).as_of == first.as_of
    assert not asked
    Loop().after(seconds=20).tick()
    assert told(access, wish, NOON + timedelta(seconds=30)).as_of == first.as_of
    assert told(access, wish, NOON + timedelta(seconds=31)).as_of == first.as_of
    assert asked == [NOON + timedelta(seconds=30)], "one reading at a time"
    assert fit_of(access=access, description=wish, now=NOON + timedelta(minutes=6)) is None


def test_a_fleet_that_takes_long_to_read_is_read_less_often(two_nodes, monkeypatch):
    """Reading computes beside the answers of its process, so it may take a tenth of the time; whether it must is asked once an answer."""
    access = two_nodes.access("submitter")
    wish = {"name": "a", "quota": PATH, "gpus": 8, "workers": 4}  # more than there is, so that changes are tried as well
    told(access, wish, NOON)
    asked = []
    questions = []
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda grounds, at: asked.append(at))
    decided = grounds.decided_now
    monkeypatch.setattr(grounds, "decided_now", lambda: questions.append(1) or decided())
    grounds.GROUNDS._serving.took = timedelta(seconds=3)
    submit(two_nodes.nodes[PATH])
    Loop().after(seconds=1).tick()

    for second in (6, 29):
        told(access, wish, NOON + timedelta(seconds=second))
    assert not asked
    assert not questions
    told(access, wish, NOON + timedelta(seconds=30))
    assert asked == [NOON + timedelta(seconds=30)]
    assert len(questions) == 1


def test_nobody_else_waits_while_futures_are_played_for_a_job(two_nodes, monkeypatch):
    """They take seconds where the processor is busy, and most jobs that are typed meanwhile start at once."""
    run(two_nodes, PATH, limit_seconds=7200)
    small = {"name": "small", "quota": PATH, "gpus": 1}
    (checked,) = submissions_check(access=two_nodes.access("submitter"), descriptions=[small], now=NOON)
    play, answered = grounds.waits_foreseen, []

    def playing(*args: Any, **named: Any) -> Any:
        another = Thread(
            target=lambda: answered.append(grounds.GROUNDS.trial(lambda side: fitting.job_of(checked, side), NOON, dated=False)), daemon=True
        )
        another.start()
        another.join(timeout=20)
        assert answered, "it waits for the futures"
        return play(*args, **named)

    monkeypatch.setattr(grounds, "waits_foreseen", playing)
    found = fit(two_nodes.access("submitter"), workers=2, limit_s=600)

    assert found.verdict == "later"
    assert answered[0][0].stands, "it starts at once"


def test_the_number_of_workers_that_is_proposed_is_the_largest_that_starts_as_soon(two_nodes):
    """Of 40, it tried 39, 30, 20, 10 and 1, and proposed 10."""
    found = fit(two_nodes.access("submitter"), gpus=1, workers=40)

    assert [(one.path, one.to, one.now) for one in found.changes if one.path == "workers"] == [("workers", 16, True)]


def test_a_job_that_never_starts_is_told_neither_its_quota_nor_its_cost(two_nodes):
    access = two_nodes.access("submitter")

    def panel(**wish: Any) -> str:
        found = fit(access, **wish)
        return render_to_string("scheduler/_fit.html", {"view": fit_view(found, access, {})})

    never = panel(gpus=64)
    assert "Never starts like this" in never
    assert not any(words in never for words in ("Under which quota", "What it costs", "You cannot view prices"))
    assert "can hold a worker: " in never and "role worker" not in never
    assert "Under which quota" in panel(gpus=1)


def test_presets_say_nothing_of_a_fleet_that_was_read_too_long_ago(two_nodes, monkeypatch):
    access = two_nodes.access("submitter")
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(NOON)
    assert preset_fits(access=access, templates=templates_visible(access), now=NOON + timedelta(seconds=30)).found
    asked = []
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda grounds, at: asked.append(at))
    monkeypatch.setattr(grounds, "PATIENCE_SECONDS", 0.01)

    late = NOON + timedelta(minutes=6)
    assert preset_fits(access=access, templates=templates_visible(access), now=late) == PresetFits({}, more=True)
    assert asked == [late], "and it is read again"


def test_presets_play_no_futures_and_read_a_few_rows_however_many_there_are(two_nodes, monkeypatch):
    """Futures of one of them took 12 seconds of a processor; budgets were added up, and the last quota looked for, once for each."""
    access = two_nodes.access("submitter")
    for _ in range(2):
        run(two_nodes, PATH, limit_seconds=7200)
    Budget.objects.create(public_id="b-1", quota=two_nodes.nodes[PATH], name="year", unit="gpu_hours", amount=1_000_000, period="year")
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(NOON)
    monkeypatch.setattr(grounds, "waits_foreseen", None)
    monkeypatch.setattr(presets, "PATIENCE_SECONDS", 60.0)

    shown = templates_visible(access)

    def asked(most: int) -> tuple[PresetFits, int]:
        grounds.GROUNDS._serving.answers.clear()
        with CaptureQueriesContext(connection) as queries:
            return preset_fits(access=access, templates=shown[:most], now=NOON), len(queries)

    (_, one), (all_of_them, many) = asked(1), asked(len(shown))
    assert "later" in {fit.verdict for fit in all_of_them.found.values()} and not all_of_them.more
    assert many - one <= len(shown) - 1, "at most the speeds of each"


def test_presets_that_take_longer_than_a_page_waits_are_told_in_turns(two_nodes, monkeypatch):
    access = two_nodes.access("submitter")
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(NOON)
    monkeypatch.setattr(presets, "PATIENCE_SECONDS", 0.0)
    tried = []
    start_checked = fitting.start_checked
    monkeypatch.setattr(presets, "start_checked", lambda **asked: tried.append(1) or start_checked(**asked))

    first = preset_fits(access=access, templates=templates_visible(access), now=NOON)
    assert (len(first.found), first.more, len(tried)) == (1, True, 1)
    monkeypatch.setattr(presets, "PATIENCE_SECONDS", 60.0)
    whole = preset_fits(access=access, templates=templates_visible(access), now=NOON)
    assert first.found.items() <= whole.found.items() and not whole.more
    assert len(tried) == len(whole.found), "what was found is kept"


def test_while_a_fleet_is_read_for_the_first_time_one_is_asked_to_come_again(two_nodes, monkeypatch):
    client = two_nodes.client("submitter")
    readings = []
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda grounds, at: readings.append(at))
    monkeypatch.setattr(grounds, "PATIENCE_SECONDS", 0.01)
    wish = {"name": "a", "quota": PATH, "gpus": 4}

    for _ in range(2):
        answer = client.post("/api/v1/fit", wish, content_type="application/json")
        assert (answer.status_code, answer["Retry-After"], answer.json()["retry_after_s"]) == (202, "1", 1)
    assert len(readings) == 1
    page = client.post("/jobs/new/look", wish | {"_from": "form"})
    assert 'data-again="1000"' in page.json()["fit"]
    assert client.post("/api/v1/fit", {"name": "a"}, content_type="application/json").status_code == 422, "faults are told at once"

    grounds.GROUNDS._make_and_tell(readings[0])
    assert client.post("/api/v1/fit", wish, content_type="application/json").status_code == 200


def test_a_fleet_that_can_not_be_read_is_told_once_and_tried_again(two_nodes, monkeypatch):
    access = two_nodes.access("submitter")
    wish = {"name": "a", "quota": PATH, "gpus": 4}
    with monkeypatch.context() as broken:
        broken.setattr(grounds, "policy", lambda: 1 // 0)
        assert fit_of(access=access, description=wish, now=NOON) is None
        with pytest.raises(ZeroDivisionError):
            fit_of(access=access, description=wish, now=NOON)
    assert told(access, wish, NOON).verdict == "now"


def test_grounds_take_turns_and_see_what_is_new(two_nodes):
    access = two_nodes.access("submitter")
    for minute in range(0, 40, 6):
        moment = now() + timedelta(minutes=minute)
        found = told(access, {"name": "a", "quota": PATH, "gpus": 8, "workers": 2}, moment)
        assert (found.verdict == "now") == (minute == 0), minute
        if not minute:
            job = run(two_nodes, "acme/product/search")
            assert job.pk


A100 = "A100-SXM-40GB"


@pytest.fixture
def two_types(two_nodes: Any) -> Any:
    builders.gpu_type(A100, board="A100-40", memory_mib=40_960)
    builders.node("a1", gpus=8, type_name=A100)
    for path in ("acme", "acme/research", "acme/research/nlp"):
        QuotaShare.objects.create(node=two_nodes.nodes[path], gpu_type=A100, guaranteed_milli=8000, limit_milli=None)
    for name, rate in ((H100, 4_000_000), (A100, 1_000_000)):
        builders.rate(name, since=NOON - timedelta(days=1), micros=rate)
    return two_nodes


def test_on_a_slower_type_it_takes_longer_and_costs_that_types_price(two_types):
    lead = two_types.access("team_lead")
    wish = {"estimate_s": 3600, "throughput": {A100: 0.45}}

    fast = fit(lead, **wish)
    assert (fast.gpu_type, fast.run_seconds, fast.cost_micros) == (H100, 3600, 32_000_000)
    assert [(one.gpu_type, one.speed, one.run_seconds, one.cost_micros, one.chosen) for one in fast.on_types] == [
        (H100, 1.0, 3600, 32_000_000, True),
        (A100, 0.45, 8000, 17_777_778, False),
    ]
    slow = fit(lead, gpu_types=[A100], **wish)
    assert (slow.gpu_type, slow.run_seconds, slow.cost_micros) == (A100, 8000, 17_777_778)
    assert [one.gpu_type for one in slow.on_types] == [A100]
    cut = fit(lead, limit_s=7200, **wish)
    assert [(one.run_seconds, one.cut) for one in cut.on_types] == [(3600, False), (7200, True)]
    assert [one.gpu_type for one in fit(lead, throughput={H100: 0}, estimate_s=60).on_types] == [A100]
    assert fit(lead, throughput={H100: 0.5, A100: 2}, estimate_s=60).gpu_type == A100, "the faster type is tried first"
    assert fit(lead, estimate_s=3600).on_types == (), "who states no speeds is shown none"
    assert {one.cost_micros for one in fit(two_types.access("submitter"), **wish).on_types} == {None}


def test_it_is_tried_where_the_work_costs_least_if_it_says_so_or_the_fleet_does(two_types):
    lead, half = two_types.access("team_lead"), {"throughput": {A100: 0.5}, "estimate_s": 3600}

    cheap = fit(lead, type_choice="cheapest", **half)  # half as fast for a quarter of the price
    assert (cheap.gpu_type, cheap.cost_micros) == (A100, 16_000_000)
    assert [one.gpu_type for one in cheap.on_types] == [A100, H100]
    (first, *_) = fit_view(cheap, lead, {}).speeds
    assert first == f"{A100} is tried first: the work costs the least there, of the types that the job accepts."
    assert fit(lead, type_choice="cheapest", throughput={A100: 0.2}, estimate_s=3600).gpu_type == H100
    stated = fit(lead, type_choice="stated", gpu_types=[A100, H100], estimate_s=3600)
    assert [one.gpu_type for one in stated.on_types] == [A100, H100], "whatever its speeds"

    QuotaNode.objects.filter(parent=None).update(policy={"type_choice": "cheapest"})
    grounds.GROUNDS.forget()
    assert fit(lead, **half).gpu_type == A100
    assert fit(lead, type_choice="fastest", **half).gpu_type == H100


def test_the_panel_and_the_api_tell_of_each_type(two_types):
    description = {"name": "train", "quota": PATH, "gpus": 8, "estimate_s": 3600, "limit_s": 7200, "throughput": {A100: 0.45}}
    client = two_types.client("team_lead")

    told = client.post("/api/v1/fit", description, content_type="application/json").json()
    assert [(one["gpu_type"], one["run_s"], one["cut"]) for one in told["on_types"]] == [(H100, 3600, False), (A100, 7200, True)]
    form = {"_from": "form", "name": "train", "quota": PATH, "gpus": "8", "estimate_s": "1h", "limit_s": "2h", "throughput": f"{A100}=0.45"}
    panel = client.post("/jobs/new/look", form).json()["fit"]
    assert "By GPU type" in panel and "0.45×" in panel
    assert "cut off by its limit" in panel


def test_which_type_is_tried_first_and_why_is_told_with_where_the_speeds_come_from(two_types):
    lead, template = two_types.access("team_lead"), SHIPPED_BY_REF["fine-tune"]

    def said(**wish):
        return fit_view(fit(lead, estimate_s=60, **wish), lead, {}).speeds

    assert said() == ()
    assert said(throughput={H100: 0.4}) == (
        f"{A100} is tried first: it is the fastest of the types that the job accepts.",
        "Speeds as the job states them.",
    )
    tied = said(throughput={H100: 1}, gpu_types=[H100, A100])
    assert tied[0] == f"{H100} is tried first: it is as fast as {A100} and comes first in the job's types, or by name."
    assert fit(lead, throughput={H100: 1}, gpu_types=[H100, A100]).gpu_type == H100
    speeds_state(access=two_types.access("operator"), template=template, speeds={H100: 0, A100: 3}, now=NOON)
    assert said(template="fine-tune") == (
        f"{A100} is tried first: it is the only type on which the job can run.",
        f"Never on {H100}: the speed there is 0.",
        "Speeds of the template fine-tune, number 1.",
    )
    given = fit(lead, template="fine-tune")
    assert (given.gpu_type, given.speeds_of, given.speeds_number) == (A100, "fine-tune", 1)
    told = two_types.client("team_lead").post(
        "/api/v1/fit", {"name": "train", "quota": PATH, "template": "fine-tune"}, content_type="application/json"
    )
    assert told.json()["speeds_number"] == 1 and told.json()["types_text"][0].startswith(A100)


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ({"mig": "1g.10gb"}, "An instance 1g.10gb has 16 of 132 SMs (12% of the GPU) and is charged as 0.125 GPUs."),
        ({"mig": "3g.40gb", "sharing": "mig"}, "An instance 3g.40gb has 60 of 132 SMs (45% of the GPU) and is charged as 0.5 GPUs."),
        ({"gpu_share": 0.25}, "By MPS it computes beside others on its GPU: they share its memory bandwidth and caches."),
        (
            {"gpu_share": 0.25, "sharing": "timeslice", "class": "interactive"},
            "By time slices it has the GPU in turns: beside one other job that computes, half of the time.",
        ),
        ({"gpus": 8}, None),
    ],
)
def test_what_a_part_of_a_gpu_takes_of_its_speed_is_told(two_nodes, asked, note):
    lead = two_nodes.access("team_lead")
    roles = [{"name": "worker", **{key: asked[key] for key in ("mig", "gpu_share", "gpus") if key in asked}}]
    found = told(lead, {"name": "part", "quota": PATH, "roles": roles} | {key: asked[key] for key in ("sharing", "class") if key in asked}, NOON)

    assert fit_view(found, lead, {}).notes == (() if note is None else (note,))


def test_of_a_card_whose_multiprocessors_are_not_known_none_are_told(personas):
    builders.node("n1", gpus=8, type_name="H100-PCIE-80GB")
    lead = personas.access("team_lead")
    found = told(lead, {"name": "part", "quota": PATH, "roles": [{"name": "worker", "mig": "1g.10gb"}]}, NOON)

    assert found.gpu_type == "H100-PCIE-80GB"
    assert fit_view(found, lead, {}).notes == ()


def test_a_budget_that_it_would_use_up_is_told_before_it_is_submitted(two_nodes):
    """By numbers to those who may see it; a used-up one says that no new job starts."""
    lead, root = two_nodes.access("team_lead"), two_nodes.access("superuser")
    given = {"name": "Month", "unit": "gpu_hours", "amount": 50_000, "period": "month", "quota": PATH}
    found = budget_create(access=root, given=given, now=NOON)
    said = [fit_view(fit(lead, estimate_s=3600 * hours), lead, {}).notes for hours in (1, 5, 10)]

    assert said == [
        (),
        (f"The budget Month of {PATH}: 0% used now, 80% after it.",),
        (f"The budget Month of {PATH} would be used up by it: 0% used now, 160% after it.",),
    ]
    fields = {"name": "train", "quota": PATH, "gpus": "8", "estimate_s": "10h", "_from": "form"}
    assert "would be used up by it" in two_nodes.client("team_lead").post("/jobs/new/look", fields).json()["fit"]
    BudgetDay.objects.create(budget=found, day=NOON.date(), milli_millis=60_000 * 3_600_000)
    held = fit(lead)
    assert held.verdict == "held"
    assert f"The budget Month of {PATH} is used up: 120% of 50 GPU-hours." in held.waits_for[0]
    assert not Job.objects.exists()


def test_a_service_starts_on_as_many_gpus_as_are_wanted_of_it(two_nodes: Any) -> None:
    wish = {"name": "serve", "class": "inference", "gpus": None, "roles": [{"name": "server", "min": 1, "max": 8, "desired": 2, "gpus": 1}]}
    assert fit(two_nodes.access("submitter"), **wish).wanted_milli == 2000
