"""A description becomes jobs, or is refused with every fault at its path and nothing written."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.models import AuditEntry
from quotas.permissions import Access, access_for_user
from scheduler.jobs.reading import read_description
from scheduler.jobs.schema import Array, JobChange, JobDescription, Launch, Placing, RoleForm, Saving
from scheduler.jobs.writing import description_again
from scheduler.models import Dependency, Job, JobState
from scheduler.services.jobs.edits import job_edit
from scheduler.services.jobs.submission import submission_create, submissions_check, submissions_create
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import Loop, leaf, state, submit, wishes
from tests.servers import PROJECT

pytestmark = pytest.mark.django_db
KEYS = (
    "name",
    "quota",
    "class",
    "gpus",
    "workers",
    "roles",
    "topology",
    "launch",
    "env",
    "array",
    "size",
    "values",
    "after",
    "job",
    "if",
    "min",
    "x y",
)


def submitter(path: str = "") -> Access:
    person = builders.person()
    builders.role(person, "submitter", builders.QuotaNode.objects.get(path=path) if path else None)
    return access_for_user(person)


def create(access: Access | None = None, **description: Any) -> list[Job]:
    leaf("team", 8)
    access = access or submitter()
    return submission_create(access=access, description={"name": "train", "quota": "acme/team"} | description, now=NOON, actor=access.actor)


def faults(**description: Any) -> dict[str, list[str]]:
    with pytest.raises(ValidationError) as refused:
        create(**description)
    assert not Job.objects.exists()
    return refused.value.message_dict


def test_a_job_is_made_waits_and_is_planned_as_described() -> None:
    builders.node(gpus=8)
    (job,) = create(
        gpus=4,
        workers=2,
        gpu_types=["H100-SXM-80GB"],
        limit_s=3600,
        retries=3,
        checkpoint={"interval_s": 600},
        labels={"model": "atlas"},
        launch={"command": ["python", "train.py"], "env": {"SEED": "1"}},
    )

    assert job.spec == {
        "roles": [{"name": "worker", "min": 2, "gpus": 4, "gpu_types": ["H100-SXM-80GB"]}],
        "grace_s": 30,
        "checkpoint": {"interval_s": 600.0, "save_s": 0, "restore_s": 0},
    }
    assert (job.gpus_milli, job.state, job.preemptible, job.retry_limit, job.limit_seconds) == (8000, "queued", "yes", 3, 3600)
    assert job.launch == {"command": ["python", "train.py"], "env": {"SEED": "1"}}
    assert wishes() == 1
    assert AuditEntry.objects.get(action="job.create").object_id == job.public_id
    Loop().tick()
    assert state(job) == JobState.STARTING


def test_parts_of_processors_are_kept_as_written() -> None:
    builders.node(gpus=8, cpus=2)
    first, second, third = [create(roles=[{"gpus": 1, "cpus": cpus}])[0] for cpus in (1.5, 0.5, 0.001)]

    assert [job.spec["roles"][0]["cpus"] for job in (first, second, third)] == [1.5, 0.5, 0.001]
    Loop().tick()
    assert [state(job) for job in (first, second, third)] == [JobState.STARTING, JobState.STARTING, JobState.QUEUED]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("nlp", " Did you mean acme/research/nlp?"),
        ("research", " Did you mean acme/research/nlp?"),
        ("acme/reserch/nlp", " Did you mean acme/research/nlp?"),
        ("vision", ""),  # where the reader may not submit
        ("acme/", ""),
    ],
)
def test_a_quota_that_is_not_there_may_mean_another(personas: Personas, typed: str, meant: str) -> None:
    """People type the name by which a page calls their team."""
    with pytest.raises(ValidationError) as fault:
        submissions_check(access=personas.access("submitter"), descriptions=[{"name": "train", "gpus": 1, "quota": typed}], now=NOON)

    assert fault.value.message_dict["quota"] == [f"There is no quota {typed}.{meant}"]


def test_every_fault_is_told_at_its_path() -> None:
    assert faults(gpus=4, quota="acme/nowhere", gpu_types=["B900"], deadline=NOON - timedelta(hours=1), after=[{"job": "j-1"}]) == {
        "quota": ["There is no quota acme/nowhere."],
        "gpu_types": ["The fleet knows no B900; it knows none yet."],
        "deadline": ["It lies in the past."],
        "after[0].job": ["There is no job j-1."],
    }
    assert list(faults(gpus=4, gpuz=1, roles=[{"gpus": -1}])) == ["roles[0].gpus", "gpuz", "gpus"]
    both = "State roles, or gpus and workers for a single one."
    assert faults(gpus="x", roles=[{"gpus": "x"}, {"name": "x", "gpus": 1, "mig": "1g.10gb"}]) == {
        "gpus": ["A whole number is wanted.", both],
        "roles[0].gpus": ["A whole number is wanted."],
        "roles[1]": faults(roles=[{"gpus": 1}, {"name": "x", "gpus": 1, "mig": "1g.10gb"}])["roles[1]"],
    }
    assert faults(gpus=8, roles=[{"gpus": -1}])["gpus"] == [both]
    assert faults() == {"gpus": ["State roles, or gpus and workers for a single one."]}
    assert list(faults(roles=[{"gpus": 2, "min": 2, "max": 5, "step": 2}, {"name": "x", "gpus": 1, "mig": "1g.10gb"}])) == [
        "roles[0].max",
        "roles[1]",
    ]
    assert list(faults(gpus=8, topology={"required": "row"})) == ["topology.required"]
    assert list(faults(gpus=1, launch={"command": ["x"], "shell": "x"})) == ["launch.shell"]
    assert list(faults(gpus=1, not_before="2026-11-20T13:00:00")) == ["not_before"]  # a time needs its zone
    assert list(faults(gpus=1, grace_s=float("nan"))) == ["grace_s"]
    assert faults(gpus=1, grace_s=-1) == {"grace_s": ["At least 0s."]}
    assert faults(roles=[{"gpus": 1, "cpus": 1.2345}]) == {"roles[0].cpus": ["At most three decimals are allowed, such as 1.5 or 0.125."]}


def test_what_the_schema_refuses_hides_nothing_else() -> None:
    """One round: values of the wrong kind, unknown keys, rules between keys, and what only the fleet, the tree or the engine know."""
    found = faults(
        gpus=65,
        gpuz=1,
        quota="acme/nowhere",
        gpu_types=["B900"],
        topology={"required": "row"},
        deadline=NOON - timedelta(hours=1),
        launch={"command": ["x"], "shell": "x", "workdir": "data"},
        after=[{"job": "j-1"}],
    )
    assert found == {
        "gpus": ["At most 64."],
        "gpuz": ["There is no key gpuz here; gpus was perhaps meant."],
        "launch.workdir": ["An absolute path is wanted; it begins with /."],
        "launch.shell": ["State command or shell, not both."],
        "quota": ["There is no quota acme/nowhere."],
        "gpu_types": ["The fleet knows no B900; it knows none yet."],
        "topology.required": found["topology.required"],
        "deadline": ["It lies in the past."],
        "after[0].job": ["There is no job j-1."],
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats() | st.text("ab [].0", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)


@given(JSON)
def test_whatever_is_sent_is_read_or_its_faults_are_told(raw: Any) -> None:
    read = read_description(raw)

    assert (read.description is None) == bool(read.faults)
    assert read.description is None or read.rest is read.description
    assert read.rest is not None or not isinstance(raw, dict), "what is left can always be checked further"


def test_who_may_not_submit_there_is_told_no_more_than_he_sees() -> None:
    leaf("team", 8)
    leaf("other", 8)
    stranger = submitter("acme/other")
    with pytest.raises(ValidationError, match=r"There is no quota acme/team\."):
        create(stranger, gpus=1)
    viewer = builders.person()
    builders.role(viewer, "viewer")
    with pytest.raises(ValidationError, match=r"You may not submit to acme/team\."):
        create(access_for_user(viewer), gpus=1)
    with pytest.raises(ValidationError, match="has quotas below it"):
        create(gpus=1, quota="acme")
    hidden = submit(leaf("team"))
    with pytest.raises(ValidationError, match=f"There is no job {hidden.public_id}"):
        create(stranger, gpus=1, quota="acme/other", after=[{"job": hidden.public_id}])


def test_an_array_is_so_many_jobs_each_with_its_place() -> None:
    jobs = create(gpus=1, array={"values": [{"LR": "0.1"}, {"LR": "0.2"}]}, launch={"command": ["x"], "env": {"LR": "1"}})

    assert [(job.name, job.array_index, job.launch["env"]) for job in jobs] == [
        ("train[0]", 0, {"LR": "0.1", "GPUFLEET_ARRAY_INDEX": "0"}),
        ("train[1]", 1, {"LR": "0.2", "GPUFLEET_ARRAY_INDEX": "1"}),
    ]
    assert len({job.array for job in jobs}) == 1
    assert jobs[0].array.startswith("a-")


def test_many_are_submitted_all_or_none() -> None:
    leaf("team", 8)
    access = submitter()
    good, bad = {"name": "a", "quota": "acme/team", "gpus": 1}, {"name": "b", "quota": "acme/team", "gpus": 99}
    with pytest.raises(ValidationError) as refused:
        submissions_create(access=access, descriptions=[good, bad], now=NOON, actor=access.actor)
    assert list(refused.value.message_dict) == ["[1].gpus"]
    assert not Job.objects.exists()
    assert len(submissions_create(access=access, descriptions=[good, good], now=NOON, actor=access.actor)) == 2
    assert submissions_check(access=access, descriptions=[good], now=NOON)[0].gpus_milli == 1000
    assert Job.objects.count() == 2


def test_a_job_waits_for_those_it_depends_on() -> None:
    builders.node(gpus=8)
    loop = Loop()
    (first,) = create(gpus=1)
    (after_success,) = create(gpus=1, after=[{"job": first.public_id}])
    (in_any_case,) = create(gpus=1, after=[{"job": first.public_id, "if": "ended"}])
    (behind,) = create(gpus=1, after=[{"job": after_success.public_id}])
    assert Dependency.objects.count() == 3
    loop.tick()
    assert [state(job) for job in (first, after_success, in_any_case)] == ["starting", "queued", "queued"]
    loop.up(first)
    loop.over(first, exit_code=3)
    loop.tick()
    loop.tick()

    assert [state(job) for job in (first, after_success, in_any_case, behind)] == ["failed", "cancelled", "starting", "cancelled"]
    assert behind.events.order_by("-id")[0].cause == f"{after_success.public_id}, on which it depends, was cancelled."


@pytest.mark.parametrize("key", ["a[b", "[", "bool", "literal", "", "[key]"])
def test_an_unknown_key_is_named_whatever_it_is(key: str) -> None:
    (told,) = faults(gpus=1, **{key: 1}).values()
    assert told == [f"There is no key {key} here."]


@pytest.mark.parametrize("many", [1, 3, 4, 100])
def test_a_job_may_wait_for_many(many: int) -> None:
    """On PostgreSQL many rows are copied, which does not go where statements are sent ahead."""
    first = create(gpus=1, array={"size": many})
    (behind,) = create(gpus=1, after=[{"job": job.public_id} for job in first])

    assert Dependency.objects.filter(job=behind).count() == many


def test_what_no_back_end_can_do_is_refused_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler.backends.base import Facts
    from scheduler.services.jobs import submission

    monkeypatch.setattr(submission, "_facts_now", lambda clusters: {1: Facts(runs_mps=False, creates_mig=False)})
    builders.gpu_type()
    assert faults(roles=[{"gpu_share": 0.5}]) == {"sharing": ["No cluster's back-end can share a GPU by MPS."]}
    assert faults(roles=[{"mig": "3g.40gb"}]) == {"sharing": ["No cluster's back-end can split GPUs, and none is split so."]}
    alone = "No back-end can run a part of a job whose other parts run on another cluster."
    assert faults(gpus=1, topology={"span_clusters": True}) == {"topology.span_clusters": [alone]}
    assert faults(roles=[{"gpus": 1, "topology": {"span_clusters": True}}]) == {"roles[0].topology.span_clusters": [alone]}
    assert create(gpus=1, topology={"span_clusters": False})[0].spec["topology"] == {}


def test_what_a_part_is_charged_is_known_at_once() -> None:
    builders.gpu_type()
    assert create(roles=[{"mig": "3g.40gb"}])[0].gpus_milli == 500
    assert create(roles=[{"gpu_share": 0.25, "devices": 2}])[0].gpus_milli == 500
    assert create(roles=[{"gpu_memory_gb": 20}])[0].gpus_milli == 251


def test_not_before_holds_a_job_until_its_time_and_a_deadline_ends_its_wait() -> None:
    builders.node(gpus=8)
    loop = Loop()
    (later,) = create(gpus=1, not_before=NOON + timedelta(hours=1))
    (late,) = create(gpus=16, deadline=NOON + timedelta(minutes=5))
    loop.tick()
    assert [state(later), state(late)] == ["queued", "queued"]
    loop.after(minutes=5).tick()
    assert state(late) == "failed"
    loop.now = NOON + timedelta(hours=1)
    assert loop.tick().decided == 1
    assert state(later) == "starting"


def test_every_key_of_a_description_is_in_the_manual() -> None:
    manual = (PROJECT / "docs/job.md").read_text()
    keys = [field.alias or name for name, field in JobDescription.model_fields.items()]
    keys += [field.alias or name for part in (RoleForm, Launch, Array, Saving, Placing) for name, field in part.model_fields.items()]

    assert [key for key in keys if f"`{key}`" not in manual] == []


@pytest.mark.parametrize(
    ("job_class", "most", "stated", "kept"),
    [
        ("inference", 3, {}, True),  # its replicas need not meet
        ("inference", 3, {"in_place": False}, False),
        ("inference", 1, {}, None),  # one gang, and no service
        ("batch", 3, {}, None),
        ("batch", 3, {"in_place": True}, True),
    ],
)
def test_a_service_is_resized_in_place_unless_it_says_otherwise(job_class: str, most: int, stated: dict[str, Any], kept: bool | None) -> None:
    launch = {"command": ["serve"]} | stated
    (job,) = create(**{"class": job_class}, roles=[{"name": "server", "min": 1, "max": most, "gpus": 1}], launch=launch)

    assert job.launch.get("in_place") is kept


def test_what_becomes_a_service_before_it_starts_is_one_and_a_clone_states_nothing_of_it() -> None:
    role = {"name": "server", "min": 1, "max": 1, "gpus": 1}
    access = submitter()
    (job,) = create(access, **{"class": "inference"}, roles=[role], launch={"command": ["serve"]})
    job_edit(access=access, job=job, change=JobChange.model_validate({"workers": {"server": {"min": 1, "max": 3}}}), now=NOON)

    job.refresh_from_db()
    assert job.launch["in_place"] is True
    assert description_again(job, with_launch=True)["launch"] == {"command": ["serve"]}
