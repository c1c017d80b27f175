"""Speeds of templates by GPU type: what completed runs measure, what is stated, and what jobs are given."""

from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.jobs.template_rules import SHIPPED_BY_REF
from scheduler.jobs.template_speeds import Measured, Ran, adopted, anchored, disagreeing, measured_speeds, normalised
from scheduler.models import JobClass, JobState, Placement, TemplateSpeeds
from scheduler.selectors.template_speeds import speeds_of
from scheduler.selectors.templates import template_named
from scheduler.services.jobs.submission import submission_create
from scheduler.services.jobs.template_speeds import speeds_adopt, speeds_state
from scheduler.services.jobs.templates import template_save
from tests import builders
from tests.builders import NOON

TEAM = "acme/research/nlp"
A100, H100, T4 = "A100-SXM-40GB", "H100-SXM-80GB", "T4"
TYPES = st.sampled_from("ABCD")


@given(
    st.dictionaries(TYPES, st.floats(0.01, 1), min_size=2),
    st.dictionaries(st.integers(0, 5), st.tuples(st.floats(1, 1e5), st.sets(TYPES, min_size=1)), min_size=1),
    st.integers(1, 4),
)
def test_runs_that_follow_speeds_exactly_measure_these_speeds(speeds, groups, times):
    """Whatever the groups need: only relations within a group count, and groups that share a type connect."""
    runs = [
        Ran(name, group, seconds / speeds[name])
        for group, (seconds, types) in groups.items()
        for name in sorted(types & speeds.keys())
        for _ in range(times)
    ]

    found = measured_speeds(runs)

    assert (not found) == all(len(types & speeds.keys()) < 2 for _, types in groups.values())
    assert all(one.low <= one.speed * 1.000001 and one.speed <= one.high * 1.000001 for one in found.values())
    if found:
        assert max(one.speed for one in found.values()) == pytest.approx(1)
        fastest = max(speeds[name] for name in found)
        assert {name: one.speed for name, one in found.items()} == pytest.approx({name: speeds[name] / fastest for name in found})


def test_one_bad_run_moves_no_median_and_shows_in_the_spread():
    runs = [Ran("A", 1, 100.0)] * 5 + [Ran("B", 1, pace) for pace in (200, 200, 210, 190, 4000)]

    found = measured_speeds(runs)

    assert found["B"].speed == pytest.approx(0.5)
    assert (found["B"].runs, found["A"].low, found["A"].high) == (5, pytest.approx(1), pytest.approx(1))
    assert found["B"].low == pytest.approx(100 / 210) and found["B"].high == pytest.approx(0.5)


def test_runs_of_other_sizes_are_not_compared():
    """Eight GPUs finish sooner than one: that says nothing about the types."""
    assert measured_speeds([Ran("A", 1, 100.0), Ran("B", 8, 10.0)]) == {}


@given(st.dictionaries(TYPES, st.just(0) | st.floats(1e-9, 1e6)))
def test_the_fastest_becomes_1_and_only_what_is_0_stays_0(speeds):
    found = normalised(speeds)

    assert max(found.values(), default=0) == (1 if any(speeds.values()) else 0)
    assert {name for name, speed in found.items() if not speed} == {name for name, speed in speeds.items() if not speed}
    assert normalised(found) == found


def test_what_is_measured_stands_beside_what_is_stated_and_disagrees_where_it_is_off():
    measured = {"A": Measured(1, 1, 1, 9), "B": Measured(0.5, 0.45, 0.55, 5), "C": Measured(0.2, 0.2, 0.2, 2)}
    stated = {"A": 0.5, "B": 0.25, "C": 0.5, "H": 1}

    beside, anchor = anchored(stated, measured)

    assert anchor == "A" and beside["B"].speed == 0.25
    assert disagreeing(stated, measured) == set(), "C has too few runs to say so"
    assert disagreeing(stated | {"B": 0.5}, measured) == {"B"}
    assert disagreeing(stated | {"B": 0}, measured) == {"B"}, "it ran where it is never to run"
    assert disagreeing({"A": 1}, measured) == {"B"}, "what is not stated counts as 1"
    assert disagreeing({}, measured) == set()
    assert adopted(stated | {"B": 0.5, "T": 0}, measured) == ({"A": 0.5, "B": 0.25, "C": 0.5, "H": 1, "T": 0}, {"A": 9, "B": 5})
    fast = {"A": Measured(1, 1, 1, 9), "B": Measured(0.5, 0.5, 0.5, 9), "H": Measured(0.8, 0.8, 0.8, 9)}
    assert adopted({"A": 1, "B": 0, "H": 0.5}, fast) == ({"A": 1, "B": 0, "H": 0.8}, {"A": 9, "H": 9}), "never is no figure that runs correct"
    assert adopted({"A": 1, "B": 0}, {name: fast[name] for name in "AB"}) == ({}, {})
    assert adopted({}, {"A": Measured(1, 1, 1, 9), "C": Measured(0.2, 0.2, 0.2, 2)}) == ({}, {}), "one type is no relation"


def ran(name, gpus=1, *, minutes=60, template="fine-tune", on=None, work=None, started=NOON, **fields):
    """A completed run of a job of a template on one node of a type."""
    node = builders.node(gpus=gpus, type_name=name)
    until = started + timedelta(minutes=minutes)
    facts = {"template": template, "template_version": 1, "state": JobState.COMPLETED, "gpus_milli": 1000 * gpus} | fields.pop("job", {})
    spec = {"work_s": work} if work else {}
    job = builders.job(on=on, spec=spec, **facts)
    run = builders.attempt(job, started_at=started, running_at=started, ended_at=until, **({"outcome": "completed", "exit_code": 0} | fields))
    for device in node.gpus.all():
        Placement.objects.create(attempt=run, job=job, node=node, gpu=device, since=started, until=until)
    return job


def known(personas, who="superuser", ref="fine-tune"):
    access = personas.access(who)
    (one,) = speeds_of(access, [template_named(access, ref)], now=NOON + timedelta(days=1))
    return one


@pytest.mark.django_db
def test_completed_runs_alike_are_measured_and_those_that_would_lie_are_not(personas):
    team = personas.nodes[TEAM]
    for minutes in (50, 60, 70):
        ran(H100, on=team, minutes=minutes)
        ran(A100, on=team, minutes=2 * minutes)
    before = known(personas)
    assert {name: (round(one.speed, 3), one.runs) for name, one in before.measured.items()} == {A100: (0.5, 3), H100: (1, 3)}
    assert before.adoptable == {A100: 0.5, H100: 1} and before.counted == 6

    for facts in (
        {"outcome": "failed", "exit_code": 1},
        {"outcome": "preempted", "exit_code": None},
        {"exit_code": 3},
        {"number": 2},
        {"job": {"job_class": JobClass.INTERACTIVE}},
        {"job": {"template": None}},
        {"minutes": 0.5},
        {"started": NOON - timedelta(days=100)},
    ):
        ran(A100, on=team, **({"minutes": 5} | facts))
    shrunk = ran(A100, 2, on=team, minutes=5)
    shrunk.placements.filter(pk=shrunk.placements.first().pk).update(until=NOON + timedelta(minutes=1))
    half = ran(A100, on=team, minutes=5)
    half.placements.update(gpu_milli=500)

    assert known(personas) == before


@pytest.mark.django_db
def test_work_that_is_known_makes_jobs_of_unlike_length_comparable(personas):
    for work in (1000, 2000, 9000):
        ran(H100, minutes=work / 60, work=work)
        ran(A100, minutes=work / 60 * 4, work=work)

    assert {name: round(one.speed, 3) for name, one in known(personas).measured.items()} == {A100: 0.25, H100: 1}


@pytest.mark.django_db
def test_many_runs_of_one_template_hide_those_of_no_other(personas, monkeypatch):
    """The matrix said that no completed run counts, and the page of the template showed them."""
    monkeypatch.setattr("scheduler.selectors.template_speeds.MOST_RUNS", 6)
    for _ in range(3):
        ran(H100), ran(A100, minutes=120)
    for _ in range(7):
        ran(H100, template="notebook")
    templates = [SHIPPED_BY_REF["fine-tune"], SHIPPED_BY_REF["notebook"]]

    rows = speeds_of(personas.access("operator"), templates, now=NOON + timedelta(days=1))

    assert [one.counted for one in rows] == [6, 6]
    assert set(rows[0].adoptable) == {A100, H100}


@pytest.mark.django_db
def test_runs_of_others_are_not_told(personas):
    for _ in range(3):
        ran(H100, on=personas.nodes["acme/product/search"])
        ran(A100, on=personas.nodes["acme/product/search"], minutes=120)

    assert known(personas, "viewer").counted == 0
    assert known(personas, "operator").counted == 6


@pytest.mark.django_db
def test_a_lead_states_speeds_of_his_templates_and_an_operator_those_that_are_shipped(personas):
    builders.gpu_type(A100), builders.gpu_type(H100)
    template_save(access=personas.access("team_lead"), node=personas.nodes[TEAM], name="own", title="Own", body={"gpus": 1}, now=NOON)
    own, shipped = template_named(personas.access("team_lead"), f"{TEAM}:own"), SHIPPED_BY_REF["fine-tune"]

    def state(who, template, **facts):
        return speeds_state(access=personas.access(who), template=template, now=NOON, **({"speeds": {A100: 0.9, H100: 2}} | facts))

    for who, template in (("submitter", own), ("viewer", own), ("team_lead", shipped), ("quota_admin", shipped), ("finance", shipped)):
        with pytest.raises(PermissionDenied):
            state(who, template)
    first = state("team_lead", own, reason="  By the vendor ")
    assert (first.speeds, first.number, first.reason) == ({A100: 0.45, H100: 1}, 1, "By the vendor")
    with pytest.raises(Conflict, match="number 1 now"):
        state("team_lead", own)
    assert state("team_lead", own, seen=1, speeds={}).number == 2
    assert state("operator", shipped).number == 1
    entries = AuditEntry.objects.filter(action="template.speeds").order_by("id")
    assert [(one.object_id, one.quota_path) for one in entries] == [(own.public_id, TEAM)] * 2 + [("fine-tune", "")]
    assert entries[1].before["speeds"] == {A100: 0.45, H100: 1} and entries[1].after["speeds"] == {}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("speeds", "field"),
    [({"B300": 1}, "speeds.B300"), ({A100: -1}, f"speeds.{A100}"), ({A100: float("nan")}, f"speeds.{A100}"), ({A100: 0, H100: 0}, "speeds")],
)
def test_speeds_that_cannot_be_are_refused_at_their_field(personas, speeds, field):
    builders.gpu_type(A100), builders.gpu_type(H100)

    with pytest.raises(ValidationError) as fault:
        speeds_state(access=personas.access("operator"), template=SHIPPED_BY_REF["fine-tune"], speeds=speeds, now=NOON)
    assert list(fault.value.message_dict) == [field]
    assert not TemplateSpeeds.objects.exists()


@pytest.mark.django_db
def test_measured_speeds_are_adopted_with_how_many_runs_they_rest_on(personas):
    operator, template = personas.access("operator"), SHIPPED_BY_REF["fine-tune"]
    with pytest.raises(ValidationError, match="Not enough is measured"):
        speeds_adopt(access=operator, template=template, now=NOON)
    for _ in range(3):
        ran(H100), ran(A100, minutes=240)

    row = speeds_adopt(access=operator, template=template, now=NOON + timedelta(days=1))

    assert (row.speeds, row.runs) == ({A100: 0.25, H100: 1}, {A100: 3, H100: 3})
    assert known(personas).differing == frozenset()


@pytest.fixture
def submit(personas):
    for name in (A100, H100, T4):
        builders.gpu_type(name, board="")

    def call(**facts):
        description = {"name": "j", "quota": TEAM, "template": "fine-tune"} | facts
        (job,) = submission_create(access=personas.access("submitter"), description=description, now=NOON, actor=personas.access("submitter").actor)
        return job

    return call


def state(personas, **speeds):
    access, template = personas.access("operator"), SHIPPED_BY_REF["fine-tune"]
    last = TemplateSpeeds.objects.filter(template="fine-tune").count()
    return speeds_state(access=access, template=template, speeds=speeds, seen=last, now=NOON)


def wrong(call, **facts):
    with pytest.raises(ValidationError) as fault:
        call(**facts)
    return fault.value.message_dict


@pytest.mark.django_db
def test_a_job_that_states_no_speeds_is_given_those_of_its_template(personas, submit):
    assert submit().template_speeds is None
    state(personas, **{A100: 0.5, H100: 1, T4: 0})

    job = submit()
    assert (job.spec["throughput"], job.template_speeds) == ({A100: 0.5, H100: 1, T4: 0}, 1)
    own = submit(throughput={A100: 2})
    assert (own.spec["throughput"], own.template_speeds) == ({A100: 2}, None)
    assert submit(throughput={}).template_speeds is None, "who wants none says so"
    state(personas, **{A100: 1})
    assert submit().template_speeds == 2
    job.refresh_from_db()
    assert job.template_speeds == 1, "a job keeps what it was given"
    state(personas)
    assert submit().template_speeds is None, "nothing is stated any more"


@pytest.mark.django_db
def test_a_description_of_a_template_that_states_throughput_counts(personas, submit):
    body = {"gpus": 1, "throughput": {A100: 0.7}}
    lead = personas.access("team_lead")
    template_save(access=lead, node=personas.nodes[TEAM], name="own", title="Own", body=body, now=NOON)
    template = template_named(lead, f"{TEAM}:own")

    with pytest.raises(ValidationError, match="states throughput"):
        speeds_state(access=lead, template=template, speeds={A100: 1}, now=NOON)
    job = submit(template=f"{TEAM}:own")
    assert (job.spec["throughput"], job.template_speeds) == ({A100: 0.7}, None)
    assert known(personas, ref=f"{TEAM}:own").by_description


@pytest.mark.django_db
def test_a_job_that_can_run_nowhere_is_refused_where_that_is_said(personas, submit):
    state(personas, **{A100: 0, H100: 1, T4: 0})

    assert list(wrong(submit, gpu_types=[A100, T4])) == ["gpu_types"]
    assert wrong(submit, gpu_types=[A100]) == {"gpu_types": [f"It can run on no type that it accepts: the speeds of its template are 0 on {A100}."]}
    roles = [{"name": "a", "gpus": 1}, {"name": "b", "gpus": 1, "gpu_types": [T4]}]
    assert list(wrong(submit, roles=roles)) == ["roles[1].gpu_types"]
    assert list(wrong(submit, throughput={A100: 0, H100: 0, T4: 0})) == ["throughput"]
    assert submit(gpu_types=[A100, H100]).template_speeds == 1
    assert submit(gpu_types=[A100], throughput={A100: 0.2}).template_speeds is None

    builders.gpu_type("B200", board="")
    assert submit().pk, "a type that nobody has stated counts as 1"


@pytest.mark.django_db
def test_speeds_of_a_type_that_the_fleet_no_longer_knows_are_left_out(personas, submit):
    TemplateSpeeds.objects.create(template="fine-tune", number=1, speeds={A100: 0.5, "GONE": 1}, author_name="x")

    assert submit().spec["throughput"] == {A100: 0.5}


@pytest.fixture
def measured(personas):
    """`fine-tune` ran four times as long on one type as on the other."""
    for _ in range(3):
        ran(H100, started=now() - timedelta(days=1))
        ran(A100, minutes=240, started=now() - timedelta(days=1))


@pytest.mark.django_db
def test_the_matrix_shows_what_is_stated_and_measured_and_marks_where_they_differ(personas, measured):
    client = personas.client("operator")
    state(personas, **{A100: 0.5, H100: 1})

    page = client.get("/templates/speeds/").content.decode()
    assert "0.5×" in page and "measured 0.25×" in page and "differs" in page and "3 runs, 0.25× to 0.25×" in page
    assert page.index("Fine-tune") < page.index("Notebook")
    by_type = client.get(f"/templates/speeds/?sort=-{A100}").content.decode()
    assert by_type.index("Fine-tune") < by_type.index("Elastic training"), "what is known comes first"
    assert 'aria-sort="descending"' in by_type
    narrowed = client.get("/templates/speeds/?show=differs").content.decode()
    assert "Fine-tune" in narrowed and "Notebook" not in narrowed
    assert "No template matches" in client.get("/templates/speeds/?q=nothing+like+that").content.decode()
    assert client.get("/templates/speeds/?sort=T9&show=x").status_code == 200
    assert "Adopt measured" not in personas.client("viewer").get("/templates/speeds/").content.decode()


@pytest.mark.django_db
def test_the_matrix_of_an_empty_console_says_what_to_do(personas):
    assert "Import GPUs first" in personas.client("operator").get("/templates/speeds/").content.decode()
    builders.node(gpus=1)
    assert "No speeds are stated or measured yet" in personas.client("operator").get("/templates/speeds/").content.decode()


@pytest.mark.django_db
def test_the_matrix_asks_the_database_as_often_for_many_templates_as_for_one(personas, measured, django_assert_max_num_queries):
    client = personas.client("operator")
    client.get("/templates/speeds/")
    access = personas.access("operator")
    with django_assert_max_num_queries(3):
        speeds_of(access, list(SHIPPED_BY_REF.values()), now=now())


@pytest.mark.django_db
def test_speeds_are_stated_on_a_page_and_faults_told_at_their_fields(personas, measured):
    client, address = personas.client("operator"), "/templates/speeds/at/fine-tune"

    refused = client.post(address, {f"speed.{A100}": "half", f"speed.{H100}": "1", "seen": "0"})
    assert refused.status_code == 422
    assert "Enter a number" in refused.content.decode() and 'value="half"' in refused.content.decode()
    assert client.post(address, {f"speed.{A100}": "0.9", f"speed.{H100}": "2", "seen": "0", "reason": "Known"}).status_code == 302
    assert TemplateSpeeds.objects.get().speeds == {A100: 0.45, H100: 1}
    assert client.post(address, {f"speed.{A100}": "1", "seen": "0"}).status_code == 409
    shown = client.get(address).content.decode()
    assert "Number 1" in shown and "Known" in shown and 'value="0.45"' in shown

    preview = client.get(f"{address}?adopt=1").content.decode()
    assert "0.45×" in preview and "0.25×" in preview and "3 runs" in preview
    assert TemplateSpeeds.objects.count() == 1, "looking states nothing"
    assert client.post(address, {"adopt": "1", "seen": "1"}).status_code == 302
    assert TemplateSpeeds.objects.get(number=2).runs == {A100: 3, H100: 3}
    assert personas.client("submitter").post(address, {"seen": "2"}).status_code == 403


@pytest.mark.django_db
def test_the_api_tells_states_and_adopts_speeds(personas, measured):
    client = personas.client("operator")

    (row,) = [one for one in client.get("/api/v1/templates/throughput").json()["items"] if one["ref"] == "fine-tune"]
    assert (row["number"], row["source"], row["adoptable"], row["runs"]) == (0, None, {A100: 0.25, H100: 1}, 6)
    sent = {"ref": "fine-tune", "speeds": {A100: 1, H100: 2}, "reason": "Known"}
    stated = client.put("/api/v1/templates/throughput", sent, content_type="application/json")
    assert stated.status_code == 200, stated.content
    assert [(one["gpu_type"], one["stated"], one["measured"], one["differs"]) for one in stated.json()["speeds"]] == [
        (A100, 0.5, 0.25, True),
        (H100, 1, 1, False),
    ]
    assert client.put("/api/v1/templates/throughput", sent, content_type="application/json").status_code == 409
    wrong = client.put("/api/v1/templates/throughput", sent | {"seen": 1, "speeds": {"B300": 1}}, content_type="application/json")
    assert wrong.status_code == 422 and "speeds.B300" in wrong.content.decode()
    adopt = {"ref": "fine-tune", "adopt": True, "seen": 1}
    assert client.put("/api/v1/templates/throughput", adopt, content_type="application/json").json()["source"] == "adopted"
    told = client.get("/api/v1/templates/throughput/fine-tune").json()
    assert [(one["number"], one["runs"]) for one in told["history"]] == [(2, {A100: 3, H100: 3}), (1, {})]
    assert client.get("/api/v1/templates/throughput/nothing").status_code == 404
    refused = personas.client("viewer").put("/api/v1/templates/throughput", adopt | {"seen": 2}, content_type="application/json")
    assert refused.status_code == 403


@pytest.mark.django_db
def test_the_page_and_answer_of_a_job_say_where_its_speeds_come_from(personas, submit):
    state(personas, **{A100: 0.5, H100: 1})
    job = submit()

    page = personas.client("submitter").get(f"/jobs/{job.public_id}/").content.decode()
    assert "speeds of its template" in page and 'href="/templates/speeds/at/fine-tune"' in page
    assert personas.client("submitter").get(f"/api/v1/jobs/{job.public_id}").json()["template_speeds"] == 1
