"""Jobs of a cluster that is gone for good are given up by an operator, and by nothing else."""

import threading

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from quotas.models import LedgerClock, LedgerEntry
from scheduler.backends.base import FolderSilent
from scheduler.backends.slurm import shared
from scheduler.models import Cluster, Job, JobState, Order, Placement, SlurmCluster
from scheduler.services.hardware.giving_up import GivenUp, cluster_give_up, why_not
from scheduler.services.loop.runs import Stop, attempts_stop
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.scheduler.loop.worlds import Loop, leaf, submit

pytestmark = pytest.mark.django_db


class Gone:
    """A cluster of two nodes with three jobs, one of them still starting, and a smaller cluster beside it."""

    def __init__(self) -> None:
        self.cluster = builders.cluster("hpc")
        for _ in range(2):
            builders.node(of=self.cluster, gpus=8)
        builders.node(of=builders.cluster("south", silent_since=NOON), gpus=4)
        team, self.loop = leaf("team", 16), Loop()
        self.small = submit(team, name="small")
        self.large = submit(team, name="large", gpus=8)
        Job.objects.filter(pk=self.large.pk).update(retry_limit=3)
        self.starting = submit(team, name="starting", gpus=2)
        self.loop.tick()
        for job in (self.small, self.large):
            self.loop.up(job)
        Cluster.objects.filter(name="south").update(silent_since=None)
        self.loop.after(minutes=10)

    def silent(self) -> "Gone":
        Cluster.objects.filter(pk=self.cluster.pk).update(silent_since=self.loop.now)
        self.cluster.refresh_from_db()
        return self

    def give_up(self, access, after: str = "requeue", *, reason: str = "It burned down.", confirm: str = "hpc") -> GivenUp:
        return cluster_give_up(access=access, cluster=self.cluster, after=after, reason=reason, confirm=confirm, now=self.loop.now)

    def states(self) -> list[str]:
        return [Job.objects.get(pk=job.pk).state for job in (self.small, self.large, self.starting)]


@pytest.fixture
def gone(personas) -> Gone:
    return Gone()


def test_jobs_that_fit_another_cluster_wait_again_and_the_others_fail(gone, personas):
    gone.silent().loop.after(hours=2)

    assert gone.give_up(personas.access("operator")) == GivenUp(3, 2)
    assert gone.states() == [JobState.QUEUED, JobState.FAILED, JobState.QUEUED], "also one that had tries left"
    assert not Placement.objects.filter(until__isnull=True).exists()
    assert not LedgerEntry.objects.filter(until__isnull=True).exists()
    assert fleet_faults() == []
    attempt = gone.large.attempts.get()
    assert (attempt.outcome, attempt.cause) == ("failed", "Cluster hpc is gone, and its jobs were given up: It burned down.")
    entry = AuditEntry.objects.get(action="cluster.give_up")
    assert (entry.after["jobs"], entry.after["requeued"], entry.reason) == (3, 2, "It burned down.")

    gone.loop.tick()
    assert {placement.node.cluster.name for placement in Placement.objects.filter(until__isnull=True)} == {"south"}
    assert not Order.objects.filter(cluster=gone.cluster, done_at__isnull=True).exclude(attempt__ended_at__isnull=False).exists()


def test_all_may_fail_and_one_that_was_to_leave_becomes_what_it_was_to_become(gone, personas):
    access = personas.access("operator")
    gone.silent()
    attempts_stop(stops=[Stop(gone.small.pk, JobState.CANCELLED, "cancelled", "Its owner cancelled it.")], now=gone.loop.now)
    assert gone.give_up(access, "fail").requeued == 0
    assert gone.states() == [JobState.CANCELLED, JobState.FAILED, JobState.FAILED]


def test_the_ledger_is_locked_before_the_cluster_as_by_whoever_finds_that_it_answers(gone, personas):
    """Locks are taken in one order (`lease.py`); else the loop and an operator wait for each other."""
    gone.silent()
    with CaptureQueriesContext(connection) as asked:
        gone.give_up(personas.access("operator"))

    inside = [one["sql"] for one in asked][next(n for n, one in enumerate(asked) if one["sql"].startswith(("SAVEPOINT", "BEGIN"))) :]
    read = [next(n for n, sql in enumerate(inside) if f'FROM "{table}"' in sql) for table in (LedgerClock._meta.db_table, Cluster._meta.db_table)]
    assert read == sorted(read)


def test_jobs_that_lost_their_nodes_before_are_counted_as_what_they_become(gone, personas):
    """As where an operator has marked the nodes down first: each job was asked to leave, and is queued again whatever is chosen now."""
    gone.silent()
    attempts_stop(stops=[Stop(job.pk, JobState.QUEUED, "lost", "Its node is down.") for job in (gone.small, gone.large)], now=gone.loop.now)

    Job.objects.update(owner=get_user_model().objects.get(username="team_lead"))

    page = personas.client("operator").get(reverse("cluster_give_up", args=["hpc"])).content.decode()
    assert "3 jobs are queued again; 0 others end." in page and "Owners of 3 jobs are notified." in page
    assert gone.give_up(personas.access("operator"), "fail") == GivenUp(3, 2)
    assert gone.states() == [JobState.QUEUED, JobState.QUEUED, JobState.FAILED]


def test_nothing_is_told_any_more_to_a_cluster_that_is_gone(gone, personas):
    gone.silent()
    attempts_stop(stops=[Stop(gone.small.pk, JobState.CANCELLED, "cancelled", "Its owner cancelled it.")], now=gone.loop.now)

    gone.give_up(personas.access("operator"))

    assert not Order.objects.filter(cluster=gone.cluster, done_at__isnull=True).exists()


def test_a_cluster_that_has_answered_meanwhile_keeps_its_jobs(gone, personas):
    gone.silent()
    Cluster.objects.filter(pk=gone.cluster.pk).update(silent_since=None)

    with pytest.raises(Conflict, match="answers again"):
        gone.give_up(personas.access("operator"))
    assert gone.states() == [JobState.RUNNING, JobState.RUNNING, JobState.STARTING]


def test_it_is_refused_while_the_cluster_answers_and_without_reason_name_or_right(gone, personas):
    access = personas.access("operator")
    with pytest.raises(Conflict, match="hpc answers: cancel or drain its jobs instead"):
        gone.give_up(access)
    gone.silent()
    for wrong in ({"reason": " "}, {"confirm": "south"}, {"after": "perhaps"}):
        with pytest.raises(ValidationError):
            gone.give_up(access, **wrong)
    with pytest.raises(PermissionDenied):
        gone.give_up(personas.access("team_lead"))
    assert gone.states() == [JobState.RUNNING, JobState.RUNNING, JobState.STARTING]


def test_the_page_shows_what_happens_and_asks_for_the_name(gone, personas):
    operator, address = personas.client("operator"), reverse("cluster_give_up", args=["hpc"])
    assert "hpc answers: cancel or drain its jobs instead." in operator.get(address).content.decode()
    assert address not in operator.get(reverse("cluster", args=["hpc"])).content.decode()
    gone.silent()

    assert address in operator.get(reverse("cluster", args=["hpc"])).content.decode()
    page = operator.get(address).content.decode()
    assert "Its 3 jobs with 11 GPUs may have ended since, or still run." in page
    assert "2 jobs are queued again; 1 other ends." in page
    assert "Fails, no other cluster has the GPUs that it needs" in " ".join(page.split())
    wrong = operator.post(address, {"jobs": "fail", "reason": "Gone", "confirm": "south"})
    assert (wrong.status_code, "Type hpc to confirm." in wrong.content.decode()) == (422, True)
    done = operator.post(address, {"jobs": "requeue", "reason": "Gone", "confirm": "hpc"}, follow=True)
    assert "3 jobs of hpc were given up, 2 of them queued again." in done.content.decode()
    assert "No job runs there." in operator.get(address).content.decode()


def test_the_api_and_the_command_do_the_same(gone, personas):
    operator, address = personas.client("operator"), "/api/v1/clusters/hpc/give-up"
    body = {"reason": "Gone", "confirm": "hpc"}
    assert operator.post(address, body, content_type="application/json").status_code == 409
    gone.silent()
    told = operator.post(f"{address}?dry_run=true", {"reason": "Gone"}, content_type="application/json").json()
    assert [(job["name"], job["requeued"]) for job in told["jobs"]] == [("large", False), ("starting", True), ("small", True)]
    assert (told["requeued"], told["others"], told["uncharged_milli_seconds"] > 0) == (2, 0, True)
    assert gone.states()[0] == JobState.RUNNING
    assert operator.post(address, {"reason": "Gone"}, content_type="application/json").status_code == 422
    assert operator.post(address, body, content_type="application/json").status_code == 200
    assert gone.states() == [JobState.QUEUED, JobState.FAILED, JobState.QUEUED]


class TestSharedFolders:
    """A Slurm cluster whose controller answers, as far as its own commands tell."""

    @pytest.fixture
    def row(self, gone, tmp_path, monkeypatch):
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "sinfo").write_text("#!/bin/sh\necho 'main*|up|infinite'\n")
        (programs / "sinfo").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setattr(shared, "WAIT", 0.2)
        Cluster.objects.filter(pk=gone.cluster.pk).update(backend="slurm")
        gone.silent()
        return SlurmCluster.objects.create(cluster=gone.cluster, folder=str(tmp_path), tag="cafecafe", changed_at=NOON)

    def test_a_cluster_whose_folder_hangs_can_be_given_up(self, gone, row):
        over = threading.Event()
        top = shared.top_in(row.folder, row.tag)
        try:
            with pytest.raises(FolderSilent):
                shared.asked(top, over.wait)
            assert why_not(gone.cluster) == ""
        finally:
            over.set()

    def test_one_whose_controller_and_folder_answer_can_not(self, gone, row):
        assert why_not(gone.cluster) == "hpc answers again: its jobs go on."
