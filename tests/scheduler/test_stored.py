"""What the row of a job keeps of its description: one form, whoever made the job."""

import json

import pytest

from scheduler.engine.model.values import Topology
from scheduler.jobs.schema import LONGEST_SECONDS, JobDescription
from scheduler.jobs.stored import accepts, least_of, most_of, role_named, roles_of, takes_gpus, types_of
from scheduler.scenarios.kinds import MOST_WORKERS
from scheduler.scenarios.nodes import MOST_GPUS
from scheduler.snapshots.jobs import Asks, Kinds
from scheduler.snapshots.taking import ASKED
from tests.builders import job

ROLE = {"name": "worker", "min": 1}
H100, A100 = "H100-SXM-80GB", "A100-SXM-40GB"


@pytest.mark.parametrize(
    ("said", "roles"),
    [
        ({"gpus": 2}, [ROLE | {"gpus": 2}]),
        ({"gpus": 0, "workers": 3}, [ROLE | {"gpus": 0, "min": 3}]),
        ({"gpus": 2, "gpu_types": [H100]}, [ROLE | {"gpus": 2, "gpu_types": [H100]}]),
        ({"roles": [{"gpus": 1}]}, [ROLE | {"gpus": 1}]),
        (
            {"roles": [{"name": "a", "gpus": 1, "max": 4, "step": 1}, {"name": "b", "mig": "1g.10gb", "gpu_types": [A100]}], "gpu_types": [H100]},
            [{"name": "a", "min": 1, "max": 4, "gpus": 1, "gpu_types": [H100]}, {"name": "b", "min": 1, "mig": "1g.10gb", "gpu_types": [A100]}],
        ),
    ],
)
def test_however_a_gang_is_described_it_is_kept_in_one_form(said, roles):
    spec = JobDescription.model_validate({"name": "x", "quota": "acme"} | said).spec

    assert spec == {"roles": roles, "grace_s": 30}


def test_numbers_are_kept_as_people_write_them():
    role = {"gpu_memory_gb": 20.0, "host_memory_gb": 64, "cpus": 1.5}
    said = {"roles": [role], "checkpoint": {"interval_s": 600, "save_s": 1.5}, "work_s": 7200, "throughput": {H100: 1, A100: 0.5}, "needs": {"a": 4}}
    kept = json.dumps(JobDescription.model_validate({"name": "x", "quota": "acme", "grace_s": 60.0} | said).spec)

    assert ".0" not in kept
    assert (kept.count("1.5"), kept.count("0.5")) == (2, 1)


def test_what_is_read_of_it():
    first = {"name": "driver", "min": 0, "cpus": 4, "gpus": 0}
    spec = {"roles": [first, ROLE | {"max": 4, "gpus": 2, "gpu_types": [H100, A100]}, {"name": "c", "min": 2, "gpu_share": 0.5, "gpu_types": [H100]}]}

    assert [(least_of(role), most_of(role), takes_gpus(role)) for role in roles_of(spec)] == [(0, 1, False), (1, 4, True), (2, 2, True)]
    assert (role_named(spec, "driver"), role_named(spec, "nobody")) == (first, {})
    assert types_of(spec) == [H100, A100]
    assert [accepts(spec, name) for name in (H100, A100, "B200")] == [True, True, False]
    assert [accepts({"roles": [ROLE], "throughput": {H100: 0}}, name) for name in (H100, A100)] == [False, True]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "said",
    [
        {"gpus": 2, "workers": 3, "topology": {"preferred": "node"}, "priority": -7},
        {"gpus": 1, "launch": {"command": ["true"], "image": "registry/name:1"}, "needs": {"pcie_gbps": 40.5}, "preemptible": False},
        {"roles": [{"gpu_share": 0.3, "cpus": 1.5, "host_memory_gb": 2.5}], "class": "interactive", "sharing": "timeslice", "grace_s": 1.5},
        {"roles": [{"mig": "1g.10gb", "devices": 2}], "class": "inference", "checkpoint": None},
        {"gpus": 8, "throughput": {H100: 1, A100: 0.45}, "checkpoint": {"interval_s": 600, "save_s": 5}, "node_labels": {"a": "b"}},
    ],
)
def test_the_snapshot_plans_what_was_judged_on_submission(said):
    description = JobDescription.model_validate({"name": "x", "quota": "acme"} | said)
    columns = (description.job_class, description.priority, description.preemptible_column)
    kinds = Kinds(Topology())
    judged = kinds.judge(description.spec, *columns)
    row = job(spec=description.spec)

    ((_, kept),) = ASKED.raw([row.pk])
    asks = kinds.kept(kept, *columns)

    assert isinstance(asks, Asks)
    assert repr(asks.kind) == repr(judged)
    assert asks.movable == ("checkpoint" not in said or said["checkpoint"] is not None)
    assert kinds.kept(kept, *columns) is asks, "it is not read again"
    assert kinds.asks(row.spec, *columns) == asks, "who has the row itself is given the same"


@pytest.mark.parametrize(
    "role",
    [
        *({"gpus": 1} | one for one in ({"min": MOST_WORKERS}, {"max": MOST_WORKERS}, {"step": MOST_WORKERS})),
        *({"gpus": 1} | one for one in ({"cpus": 100_000}, {"cpus": 0.001}, {"host_memory_gb": 1_000_000})),
        *({"gpus": count} for count in (0, MOST_GPUS)),
        *({"gpu_memory_gb": 100_000}, {"gpu_share": 1}, {"mig": "1g.10gb", "devices": MOST_GPUS}),
    ],
)
@pytest.mark.parametrize(
    "said",
    [
        {"priority": -1000, "grace_s": 0},
        {"priority": 1000, "grace_s": LONGEST_SECONDS, "preemption_delay_s": LONGEST_SECONDS},
        {"checkpoint": {"interval_s": LONGEST_SECONDS, "save_s": LONGEST_SECONDS, "restore_s": LONGEST_SECONDS}},
    ],
)
def test_within_the_bounds_of_the_schema_the_engine_has_none_of_its_own(role, said):
    description = JobDescription.model_validate({"name": "x", "quota": "acme", "roles": [role]} | said)

    assert isinstance(Kinds(Topology()).asks(description.spec, "batch", description.priority, "yes"), Asks)


def test_a_row_that_cannot_be_read_says_why():
    kinds = Kinds(Topology())

    assert "colour" in str(kinds.kept('{"roles": [{"gpus": 3, "colour": "blue"}]}', "batch", 50, "yes"))
    assert kinds.kept("{}", "batch", 50, "yes") == "$.roles: must name at least one role"
    assert kinds.kept("[]", "batch", 50, "yes").startswith("it can't be read: ")
    assert "must be an object" in str(kinds.kept('{"roles": [{"gpus": 1}], "checkpoint": 7}', "batch", 50, "yes"))
