"""Files of checkpoints that nobody resumes from go, and nothing else does, whatever a job has put in the way."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from gpufleet.doctor import examine
from gpufleet.doctor.cluster import former_folders_answer
from scheduler.backends import hostile_files, manifests, old_checkpoints
from scheduler.backends.base import Backend, BackendError, OldCheckpoint
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.manifests import checkpoints_in
from scheduler.backends.memory import DatabaseStore
from scheduler.backends.old_checkpoints import Deleter, checkpoint_delete
from scheduler.backends.simulated import SimulatedBackend
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.values import Settings
from scheduler.models import Attempt, Checkpoint, Cluster, JobState, Order, OrderKind, SlurmCluster, SlurmRun
from scheduler.selectors.jobs import job_checkpoints
from scheduler.services.hardware import checks
from scheduler.services.jobs.checkpoints import Shard, Told, checkpoint_newest, checkpoints_tell
from scheduler.services.jobs.old_checkpoints import old_checkpoints_delete
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.backends.scenes import open_folder

NOBODY = 65_534
root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")


# JSON files that jobs save beside their weights, and that are no manifests.
OWN: dict[str, object] = {
    "config.json": {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096},
    "metrics.json": {"loss": 0.5, "files": [{"file": "shard-0"}]},
    "model.index.json": {"metadata": {"total_size": 4096}, "shards": 2},
    "none.json": {"shards": 0, "files": []},
    "bool.json": {"shards": True, "files": []},
    "list.json": [1],
}


@pytest.fixture
def root() -> Iterator[Path]:
    with open_folder() as place:
        yield place


def save(folder: Path, step: int, *, files: list[str] | None = None, shards: int = 1, size: int = 4096) -> Path:
    """A checkpoint as ranks leave it. `files`: what its manifest names, beside what is there."""
    place = folder / f"step-{step}"
    place.mkdir(parents=True)
    named = [f"shard-{number}" for number in range(shards)]
    for name in named:
        (place / name).write_bytes(b"x" * size)
    document = [{"shard": number, "file": name, "bytes": size} for number, name in enumerate([*named, *(files or [])])]
    (place / "0.json").write_text(json.dumps({"shards": shards, "files": document}))
    return place


def old(folder: Path, step: int = 5, **fields: object) -> OldCheckpoint:
    return OldCheckpoint(**{"job": "j-1", "attempt": 1, "step": step, "location": str(folder)} | fields)  # type: ignore[arg-type]


@contextmanager
def without_rights() -> Iterator[None]:
    """As somebody whom the rights of files bind."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if mine == 0:
            os.seteuid(0)


class TestFiles:
    def test_the_files_of_one_step_go_with_its_folder_and_no_others(self, root: Path) -> None:
        place, other = save(root / "j-1" / "1", 5, shards=3), save(root / "j-1" / "1", 6)

        assert checkpoint_delete(root, old(place)) >= 3 * 4096
        assert not place.exists()
        assert sorted(path.name for path in other.iterdir()) == ["0.json", "shard-0"]
        assert checkpoint_delete(root, old(place)) == 0, "told twice, it is gone"

    def test_what_no_manifest_names_stays(self, root: Path) -> None:
        place = save(root / "j-1" / "1", 5)
        (place / "notes.txt").write_text("mine")
        (place / "folder").mkdir()
        for name, document in OWN.items():
            (place / name).write_text(json.dumps(document))

        assert checkpoint_delete(root, old(place)) > 0
        assert sorted(path.name for path in place.iterdir()) == sorted(["folder", "notes.txt", *OWN])

    def test_where_ranks_reported_it_and_left_no_manifest_all_stays(self, root: Path) -> None:
        place = root / "j-1" / "1" / "step-5"
        place.mkdir(parents=True)
        for name, document in OWN.items():
            (place / name).write_text(json.dumps(document))

        assert checkpoint_delete(root, old(place)) == 0
        assert sorted(path.name for path in place.iterdir()) == sorted(OWN)

    def test_what_was_cut_off_in_between_is_gone_on_with(self, root: Path) -> None:
        place = save(root / "j-1" / "1", 5, shards=2)
        (place / "shard-0").unlink()

        assert checkpoint_delete(root, old(place)) >= 4096
        assert not place.exists()

    @pytest.mark.parametrize("what", ["job", "attempt", "step", "manifest", "shard"])
    def test_no_link_leads_anywhere(self, root: Path, what: str) -> None:
        own, elsewhere = root / "own", root / "elsewhere"
        theirs = save(elsewhere / "j-2" / "1", 5)
        place = own / "j-1" / "1" / "step-5"
        link, to = {
            "job": (own / "j-1", elsewhere / "j-2"),
            "attempt": (own / "j-1" / "1", elsewhere / "j-2" / "1"),
            "step": (place, theirs),
            "manifest": (place / "0.json", theirs / "0.json"),
            "shard": (place / "shard-0", theirs / "shard-0"),
        }[what]
        if what == "shard":
            save(own / "j-1" / "1", 5)
            link.unlink()
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(to)

        checkpoint_delete(own, old(place))
        assert sorted(path.name for path in theirs.iterdir()) == ["0.json", "shard-0"]
        assert link.is_symlink()

    def test_no_name_leads_out_of_the_folder(self, root: Path) -> None:
        outside = root / "j-1" / "1" / "kept"
        hostile = ["../kept", str(outside), "..", ".", "", "a/../../kept", "\0", "\ud800", "x" * 5000]
        place = save(root / "j-1" / "1", 5, files=hostile)
        outside.write_text("mine")

        assert checkpoint_delete(root, old(place)) > 0
        assert outside.exists()
        assert not place.exists()

    @root_only
    def test_no_file_of_another_user_goes(self, root: Path) -> None:
        """Who may rename a folder of others could put it in the place of the step's."""
        place = save(root / "j-1" / "1", 5, shards=2)
        for path in (root / "j-1" / "1", place, *place.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        os.chown(place / "shard-1", 0, 0)

        assert checkpoint_delete(root, old(place)) >= 4096
        assert [path.name for path in place.iterdir()] == ["shard-1"]

    def test_what_lies_elsewhere_is_not_ours_to_delete(self, root: Path) -> None:
        place, theirs = save(root / "j-1" / "1", 5), save(root / "j-2" / "1", 5)
        for location in (str(theirs), f"{place}/", f"{root}/j-1/1/../1/step-5", str(place.parent), "s3://bucket/j-1/1/step-5", "step-5", ""):
            assert checkpoint_delete(root, old(place, location=location)) == 0
        assert checkpoint_delete(root, old(place, step=6)) == 0
        assert place.exists()
        assert theirs.exists()

    @pytest.mark.parametrize("bound", ["MOST_NAMES", "LARGEST_LOOK"])
    def test_what_is_too_much_to_read_is_a_fault_and_not_nothing(self, root: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
        place = save(root / "j-1" / "1", 5)
        monkeypatch.setattr(hostile_files if bound == "MOST_NAMES" else manifests, bound, 1)

        with pytest.raises(BackendError, match=r"can't be deleted: More than 1 "):
            Deleter().delete(root, old(place))
        assert sorted(path.name for path in place.iterdir()) == ["0.json", "shard-0"]

    def test_a_manifest_that_cannot_be_read_is_a_fault_and_not_none(self, root: Path) -> None:
        place = save(root / "j-1" / "1", 5)
        (place / "0.json").chmod(0)

        with without_rights(), pytest.raises(BackendError, match=r"can't be deleted: Permission denied"):
            Deleter().delete(root, old(place))
        assert sorted(path.name for path in place.iterdir()) == ["0.json", "shard-0"]

    def test_a_folder_that_is_not_mounted_is_a_fault_and_not_an_empty_one(self, root: Path) -> None:
        with pytest.raises(BackendError, match=r"can't be deleted: No such file or directory .*away"):
            Deleter().delete(root / "away", old(root / "away" / "j-1" / "1" / "step-5"))

    def test_a_file_system_that_hangs_holds_up_a_thread_and_not_the_caller(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place, answers, unlink = save(root / "j-1" / "1", 5), threading.Event(), os.unlink

        def hanging(*args: object, **more: object) -> None:
            answers.wait(30)
            unlink(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(old_checkpoints, "PATIENCE", 0.1)
        monkeypatch.setattr(old_checkpoints.os, "unlink", hanging)
        deleter = Deleter()
        with pytest.raises(BackendError, match="takes longer"):
            deleter.delete(root, old(place))
        with pytest.raises(BackendError, match="has not come back"):
            deleter.delete(root, old(place))
        answers.set()
        for thread in threading.enumerate():
            if thread.name == "old-checkpoints":
                thread.join(30)
        assert deleter.delete(root, old(place)) >= 4096, "what it freed meanwhile"
        assert deleter.delete(root, old(place)) == 0
        assert not place.exists()


class Saving:
    """A job that saves its work on a cluster of one kind."""

    def __init__(self, kind: str, root: Path) -> None:
        self.cluster = builders.cluster("here", backend=kind)
        if kind == "slurm":
            self.root = root / "gpufleet-tag" / "checkpoints"
            self.backend: Backend = SlurmBackend(self.cluster.pk, Settings(folder=str(root), tag="tag"))
        else:
            self.root = root / "saved"
            self.backend = LocalBackend(root / "local", Rules(same_user=True, checkpoints=self.root))
        self.job = builders.job(state=JobState.RUNNING)
        self.gpu = builders.gpu(builders.node(of=self.cluster, gpus=1))
        self.minutes = 0
        self.attempt = self.begin(1)

    def begin(self, number: int) -> Attempt:
        attempt = builders.attempt(self.job, number=number, resumed_from=checkpoint_newest(job=self.job.pk))
        builders.placement(self.job, self.gpu, attempt=attempt, until=NOON)
        return attempt

    def again(self) -> None:
        Attempt.objects.filter(pk=self.attempt.pk).update(ended_at=NOON)
        self.attempt = self.begin(self.attempt.number + 1)

    @property
    def folder(self) -> Path:
        return self.root / self.job.public_id / str(self.attempt.number)

    def save(self, *steps: int) -> None:
        for step in steps:
            save(self.folder, step)
            self.minutes += 1
            found = next(one for one in checkpoints_in(self.folder) if one.step == step)
            told = Told(self.attempt.pk, self.job.pk, step, found.location, 1, (Shard(0),))
            checkpoints_tell(told=[told], now=NOON + timedelta(minutes=self.minutes))

    def turn(self) -> int:
        return old_checkpoints_delete(backends={self.cluster.pk: self.backend}, now=NOON + timedelta(hours=1))

    def on_disk(self) -> list[str]:
        return sorted(f"{path.parent.name}/{path.name}" for path in self.root.glob("*/*/step-*"))

    def rows(self) -> list[str]:
        rows = Checkpoint.objects.order_by("attempt__number", "step").values_list("attempt__number", "step")
        return [f"{attempt}/step-{step}" for attempt, step in rows]


@pytest.fixture(params=["local", "slurm"])
def saving(request: pytest.FixtureRequest, root: Path) -> Saving:
    return Saving(request.param, root)


@pytest.mark.django_db
class TestASharedFolderThatWasChanged:
    """Files of the time before lie in the folder of that time."""

    def change(self, saving: Saving, root: Path) -> Path:
        former = root / "before"
        saving.root = former / "gpufleet-tag" / "checkpoints"
        saving.save(*range(10, 60, 10))
        (root / "now").mkdir()
        saving.backend = SlurmBackend(saving.cluster.pk, Settings(folder=str(root / "now"), tag="tag", former=(str(root / "other"), str(former))))
        return former

    def test_its_old_checkpoints_go_too(self, root: Path) -> None:
        saving = Saving("slurm", root)
        self.change(saving, root)

        assert saving.turn() == 2
        assert saving.on_disk() == saving.rows() == ["1/step-30", "1/step-40", "1/step-50"]
        assert entries()[0]["checkpoints"] == 2

    def test_one_that_cannot_be_looked_at_was_not_given_up(self, root: Path) -> None:
        saving, mounted = Saving("slurm", root), root / "mounted"
        mounted.mkdir()
        self.change(saving, mounted)
        mounted.rename(root / "aside")
        mounted.touch()

        assert saving.turn() == 0
        assert len(saving.rows()) == 5

    def test_one_that_is_not_mounted_is_asked_again_and_one_that_was_given_up_is_not(self, root: Path) -> None:
        saving = Saving("slurm", root)
        former = self.change(saving, root)
        mounted = former.rename(root / "aside")
        former.mkdir()
        assert saving.turn() == 0
        assert len(saving.rows()) == 5, "without its files nobody knows what is gone"

        former.rmdir()
        former.symlink_to(mounted)
        assert saving.turn() == 2, "moved, with a link to where it lies now"
        assert saving.on_disk() == ["1/step-30", "1/step-40", "1/step-50"]

        saving.save(60)
        former.unlink()
        assert saving.turn() == 1
        assert saving.rows() == ["1/step-40", "1/step-50", "1/step-60"]
        assert (mounted / "gpufleet-tag" / "checkpoints" / saving.job.public_id / "1" / "step-30").exists()

    def test_one_that_hangs_keeps_no_other_folder_from_its_turn(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        saving = Saving("slurm", root)
        former = self.change(saving, root)
        saving.again()
        saving.root = root / "now" / "gpufleet-tag" / "checkpoints"
        saving.save(*range(60, 110, 10))
        answers, lstat = threading.Event(), Path.lstat

        def hanging(path: Path) -> os.stat_result:
            if path == former:
                answers.wait(30)
            return lstat(path)

        monkeypatch.setattr(old_checkpoints, "PATIENCE", 0.1)
        monkeypatch.setattr(Path, "lstat", hanging)
        assert saving.turn() == 2, "those of the folder from now on"
        assert saving.on_disk() == ["2/step-100", "2/step-80", "2/step-90"]
        saving.save(110)
        assert saving.turn() == 1, "also while the call for the former one has not come back"
        assert caplog.text.count("stay for now") == 2, "one line a turn"

        monkeypatch.setattr(old_checkpoints, "PATIENCE", 30.0)
        answers.set()
        for thread in threading.enumerate():
            if thread.name == "old-checkpoints":
                thread.join(30)
        assert saving.turn() == 4
        assert saving.on_disk() == ["2/step-100", "2/step-110", "2/step-90"]

    def test_no_other_folder_is_touched(self, root: Path) -> None:
        saving = Saving("slurm", root)
        self.change(saving, root)
        saving.backend = SlurmBackend(saving.cluster.pk, Settings(folder=str(root / "now"), tag="tag", former=(str(root / "other"),)))
        (root / "now" / "gpufleet-tag" / "checkpoints").mkdir(parents=True)
        assert saving.turn() == 2
        assert len(saving.on_disk()) == 5

    def test_logs_of_the_time_before_are_read_where_they_lie(self, root: Path) -> None:
        saving = Saving("slurm", root)
        former = self.change(saving, root)
        folder = former / "gpufleet-tag" / "runs" / "j-1.1"
        folder.mkdir(parents=True)
        (folder / "worker-0.log").write_text("as ever\n")
        SlurmRun.objects.create(cluster=saving.cluster, attempt_key="j-1.1", state={"at": "", "folder": str(folder)}, forgotten_at=NOON)
        assert saving.backend.logs(key="j-1.1", role="worker", index=0, offset=0, limit=100).text == "as ever\n"

    def test_the_page_of_the_connection_says_what_may_still_be_resumed_from(self, root: Path, personas: Personas) -> None:
        saving = Saving("slurm", root)
        former = self.change(saving, root)
        fields = {"folder": str(root / "now"), "tag": "tag", "former_folders": [str(root / "other"), str(former)]}
        SlurmCluster.objects.create(cluster=saving.cluster, **fields)
        removed = Checkpoint.objects.filter(removed_at__isnull=False)
        removed.update(removed_at=now())

        page = personas.client("operator").get(reverse("cluster_add"), {"cluster": "here"}).content.decode()
        assert f"<code>{former}</code>: 3 checkpoints of 1 job that may resume</li>" in page
        assert f"<code>{root / 'other'}</code>: no job resumes from here</li>" in page

        removed.update(removed_at=now() - timedelta(hours=2))
        page = personas.client("operator").get(reverse("cluster_add"), {"cluster": "here"}).content.decode()
        assert "that may resume. <strong>2 old checkpoints could not be deleted:</strong> check that this folder is mounted and answers</li>" in page

    def test_the_doctor_names_one_that_does_not_answer(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        answers, scandir = threading.Event(), os.scandir

        def hanging(path: Any) -> Any:
            if path == str(root / "hangs"):
                answers.wait(30)
            return scandir(path)

        monkeypatch.setattr(checks, "PATIENCE", 0.1)
        monkeypatch.setattr(os, "scandir", hanging)
        (root / "hangs").mkdir()
        (root / "lost").symlink_to(root / "away")
        row = SlurmCluster(former_folders=[str(root), str(root / "given-up"), str(root / "lost"), str(root / "hangs")])
        found = [finding.what for finding in former_folders_answer(row)]
        answers.set()
        assert found == [
            f"The former shared folder {root}/lost cannot be looked at: [Errno 2] No such file or directory: '{root}/lost'",
            f"The former shared folder {root}/hangs cannot be looked at: {root}/hangs does not answer within 0.1 s.",
        ]


def entries() -> list[Any]:
    return list(AuditEntry.objects.filter(action="checkpoints.delete").order_by("pk").values_list("after", flat=True))


@pytest.mark.django_db
class TestTurns:
    def test_only_those_stay_that_are_kept(self, saving: Saving) -> None:
        saving.save(*range(10, 60, 10))
        shown = [row.checkpoint.step for row in job_checkpoints(saving.job)]
        assert shown == [50, 40, 30], "those that are to go are not shown"

        assert saving.turn() == 2
        assert saving.on_disk() == saving.rows() == ["1/step-30", "1/step-40", "1/step-50"]
        [entry] = entries()
        assert entry["bytes"] >= 2 * 4096
        assert (entry["checkpoints"], entry["jobs"], entry["first_jobs"]) == (2, 1, [saving.job.public_id])
        assert saving.turn() == 0
        assert len(entries()) == 1

    def test_what_was_saved_last_is_resumed_from_and_kept_also_where_the_job_began_anew(self, saving: Saving) -> None:
        saving.save(700, 800, 900)
        saving.again()
        saving.save(100)

        newest = checkpoint_newest(job=saving.job.pk)
        assert newest is not None
        assert newest.step == 100
        assert saving.turn() == 1
        assert saving.on_disk() == ["1/step-800", "1/step-900", "2/step-100"]

    def test_what_a_run_began_from_stays_while_it_goes_on(self, saving: Saving) -> None:
        saving.save(10)
        saving.again()
        saving.save(20, 30, 40, 50)

        assert saving.turn() == 1
        assert saving.on_disk() == ["1/step-10", "2/step-30", "2/step-40", "2/step-50"]
        saving.again()
        saving.save(60)
        assert saving.turn() == 2
        assert saving.on_disk() == ["2/step-40", "2/step-50", "3/step-60"]
        assert saving.rows() == ["1/step-10", "2/step-40", "2/step-50", "3/step-60"], "an attempt names it"
        assert Checkpoint.objects.get(step=10).location == ""
        assert saving.turn() == 0

    @pytest.mark.parametrize("done", [True, False])
    def test_what_a_worker_that_joined_was_told_stays_while_its_run_goes_on(self, saving: Saving, done: bool) -> None:
        saving.save(10, 20)
        at = NOON + timedelta(minutes=saving.minutes) if done else None
        Order.objects.create(cluster=saving.cluster, attempt=saving.attempt, sequence=2, kind=OrderKind.RESIZE, made_at=NOON, done_at=at)
        saving.save(30, 40, 50, 60)

        assert saving.turn() == (1 if done else 0)
        assert {"1/step-10", "1/step-20"} < set(saving.on_disk())
        saving.again()
        saving.save(70)
        saving.turn()
        assert saving.on_disk() == ["1/step-50", "1/step-60", "2/step-70"]

    def test_what_ranks_still_write_stays_while_their_run_goes_on(self, saving: Saving) -> None:
        place = save(saving.folder, 5, shards=2)
        checkpoints_tell(told=[Told(saving.attempt.pk, saving.job.pk, 5, str(place), 2, (Shard(0),))], now=NOON)
        saving.save(10, 20, 30)

        assert saving.turn() == 0
        assert "1/step-5" in saving.on_disk()
        saving.again()
        assert saving.turn() == 1
        assert "1/step-5" not in saving.on_disk()

    def test_what_its_last_run_began_from_goes_when_that_is_over(self, saving: Saving) -> None:
        saving.save(10)
        saving.again()
        saving.save(20, 30, 40)
        assert saving.turn() == 0
        Attempt.objects.filter(pk=saving.attempt.pk).update(ended_at=NOON)

        assert saving.turn() == 1
        assert saving.on_disk() == ["2/step-20", "2/step-30", "2/step-40"]
        assert saving.turn() == 0

    def test_killed_between_the_files_and_the_row_it_is_told_no_fault(self, saving: Saving) -> None:
        saving.save(*range(10, 50, 10))
        gone = Checkpoint.objects.get(step=10)
        place = Path(gone.location)
        assert saving.backend.delete_checkpoint(old(place, 10, job=saving.job.public_id)) > 0

        assert saving.turn() == 1
        assert not Checkpoint.objects.filter(pk=gone.pk).exists()
        assert entries() == []

    def test_a_folder_that_cannot_be_written_to_is_told_and_tried_again_and_keeps_no_other(
        self, saving: Saving, caplog: pytest.LogCaptureFixture
    ) -> None:
        saving.save(*range(10, 60, 10))
        stuck = saving.folder / "step-10"
        for path in (saving.folder, *saving.folder.iterdir(), *saving.folder.glob("*/*")):
            os.chown(path, NOBODY if os.geteuid() == 0 else -1, -1)
        stuck.chmod(0o555)
        with without_rights():
            assert saving.turn() == 1
        assert "step-10" in " ".join(saving.on_disk())
        assert f"the files of step 10 of {saving.job.public_id} stay for now: {stuck} can't be deleted: Permission denied" in caplog.text

        [told] = [finding for check, finding in examine(["clockwork"]).findings if check == "clockwork: old checkpoints go"]
        assert told.what == f"The files of 1 old checkpoints were not deleted for more than 60 minutes: {stuck}"
        stuck.chmod(0o755)
        assert saving.turn() == 1
        assert not stuck.exists()
        assert not [check for check, _ in examine(["clockwork"]).findings if check == "clockwork: old checkpoints go"]

    def test_those_of_a_cluster_that_was_removed_stay_without_a_word_until_it_is_back(self, saving: Saving, caplog: pytest.LogCaptureFixture) -> None:
        saving.save(*range(10, 60, 10))
        Cluster.objects.filter(pk=saving.cluster.pk).update(removed_at=NOON)

        assert old_checkpoints_delete(backends={}, now=NOON + timedelta(hours=1)) == 0
        assert "stay for now" not in caplog.text
        assert not [check for check, _ in examine(["clockwork"]).findings if check == "clockwork: old checkpoints go"]

        Cluster.objects.filter(pk=saving.cluster.pk).update(removed_at=None)
        assert saving.turn() == 2

    def test_a_rank_that_says_that_its_checkpoint_lies_in_another_job_s_folder_deletes_nothing_there(self, saving: Saving) -> None:
        theirs = save(saving.root / "j-999" / "1", 10)
        saving.save(20)
        checkpoints_tell(told=[Told(saving.attempt.pk, saving.job.pk, 10, str(theirs), 1, (Shard(0),))], now=NOON)
        saving.save(30, 40)

        assert saving.turn() == 1
        assert sorted(path.name for path in theirs.iterdir()) == ["0.json", "shard-0"]

    def test_where_one_deletion_hangs_the_others_there_wait_for_the_next_turn(
        self, saving: Saving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        saving.save(*range(10, 70, 10))
        answers, unlink = threading.Event(), os.unlink

        def hanging(*args: object, **more: object) -> None:
            answers.wait(30)
            unlink(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(old_checkpoints, "PATIENCE", 0.1)
        monkeypatch.setattr(old_checkpoints.os, "unlink", hanging)
        assert saving.turn() == 0
        assert caplog.text.count("stay for now") == 1

        monkeypatch.setattr(old_checkpoints, "PATIENCE", 30.0)
        answers.set()
        for thread in threading.enumerate():
            if thread.name == "old-checkpoints":
                thread.join(30)
        assert saving.turn() == 3
        [entry] = entries()
        assert (entry["checkpoints"], entry["bytes"] >= 3 * 4096) == (3, True)

    def test_a_cluster_without_a_back_end_here_keeps_its_own(self, saving: Saving) -> None:
        saving.save(*range(10, 50, 10))

        assert old_checkpoints_delete(backends={}, now=NOON) == 0
        assert "1/step-10" in saving.on_disk()
        assert saving.turn() == 1


@pytest.mark.django_db
def test_those_of_simulated_jobs_have_no_files(root: Path) -> None:
    saving = Saving("local", root)
    saving.backend = SimulatedBackend(DatabaseStore(saving.cluster.pk))
    saving.save(*range(10, 50, 10))

    assert saving.turn() == 1
    assert entries() == []
