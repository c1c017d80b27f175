"""Checkpoints count once every shard is there, whoever tells of them, in whatever order and however often."""

import json
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from scheduler.backends.manifests import checkpoints_in
from scheduler.models import Attempt, Checkpoint, CheckpointShard, JobState
from scheduler.services.jobs.checkpoints import COMPLETE, KEPT, Shard, Told, checkpoints_tell, shard_report
from scheduler.services.jobs.tokens import attempt_token, token_digest
from tests import builders
from tests.builders import NOON


def attempt_with_token(token: str = "") -> Attempt:
    job = builders.job(state=JobState.RUNNING)
    return builders.attempt(job, token_digest=token_digest(token or attempt_token(f"{job.public_id}.1")))


def report(attempt: Attempt, shard: int, *, step: int = 10, shards: int = 3, location: str = "/ckpt/10") -> Checkpoint:
    return shard_report(attempt=attempt, step=step, shard=Shard(shard), shards_expected=shards, location=location, now=NOON)


@pytest.mark.django_db
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_it_counts_when_the_last_shard_has_come(order: tuple[int, ...]) -> None:
    attempt = attempt_with_token()
    for number in order:
        assert not COMPLETE([attempt.job_id])
        for _ in range(2):
            row = report(attempt, number)
    assert (row.verified_at, row.shards.count()) == (NOON, 3)
    assert dict(COMPLETE([attempt.job_id])) == {attempt.job_id: row.pk}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "field"), [({"shard": 3}, "shard"), ({"shard": 0, "shards": 4}, "shards"), ({"shard": 0, "location": "x" * 501}, "location")]
)
def test_what_contradicts_is_refused(change: dict[str, Any], field: str) -> None:
    attempt = attempt_with_token()
    report(attempt, 1)
    with pytest.raises(ValidationError) as refused:
        report(attempt, **change)
    assert set(refused.value.message_dict) == {field}
    assert CheckpointShard.objects.count() == 1


@pytest.mark.django_db
def test_the_newest_complete_one_is_resumed_and_few_are_kept() -> None:
    attempt = attempt_with_token()
    for step in range(1, 8):
        told = Told(attempt.pk, attempt.job_id, step, f"/c/{step}", 2, (Shard(0), *([Shard(1)] if step != 7 else [])))
        checkpoints_tell(told=[told], now=NOON + timedelta(minutes=step))

    assert Checkpoint.objects.get(pk=dict(COMPLETE([attempt.job_id]))[attempt.job_id]).step == 6
    assert list(Checkpoint.objects.filter(removed_at=None).order_by("step").values_list("step", flat=True)) == [4, 5, 6, 7][-KEPT - 1 :]


@pytest.mark.django_db
class TestReporting:
    body = {"step": 10, "shard": 0, "shards": 1, "location": "/ckpt/10", "bytes": 5}

    def post(self, token: str, **change: object) -> Any:
        return Client().post(
            "/api/v1/checkpoints", json.dumps(self.body | change), content_type="application/json", headers={"Authorization": f"Bearer {token}"}
        )

    def test_a_rank_reports_with_its_attempt_s_token(self) -> None:
        attempt = attempt_with_token("tok")
        answer = self.post("tok")

        assert answer.json() == {"step": 10, "present": 1, "shards": 1, "complete": True}
        assert Checkpoint.objects.get().attempt == attempt

    def test_no_other_token_and_none_of_an_attempt_that_is_over(self) -> None:
        attempt = attempt_with_token("tok")
        assert self.post("other").status_code == 403
        assert self.post("").status_code == 401
        Attempt.objects.filter(pk=attempt.pk).update(ended_at=NOON)
        assert self.post("tok").status_code == 403
        assert not Checkpoint.objects.exists()

    def test_a_bad_report_is_told_its_fields(self) -> None:
        attempt_with_token("tok")
        answer = self.post("tok", shard=4)
        assert answer.status_code == 422
        assert [error["path"] for error in answer.json()["errors"]] == ["shard"]


class TestManifests:
    def put(self, folder: Path, shard: int, *, step: int = 5, shards: int = 2, size: int = 4, said: int = 4, name: str = "") -> Path:
        place = folder / f"step-{step}"
        place.mkdir(exist_ok=True)
        file = name or f"shard-{shard}"
        (place / Path(file).name).write_bytes(b"x" * size)
        path = place / f"{shard}.json"
        path.write_text(json.dumps({"shards": shards, "files": [{"shard": shard, "file": file, "bytes": said}]}))
        return path

    def found(self, folder: Path) -> list[tuple[int, tuple[int, ...]]]:
        return [(one.step, one.shards) for one in checkpoints_in(folder)]

    def test_a_shard_is_there_when_its_file_has_the_size_that_was_said(self, tmp_path: Path) -> None:
        self.put(tmp_path, 0)
        self.put(tmp_path, 1, size=3)
        assert self.found(tmp_path) == [(5, (0,))]

        self.put(tmp_path, 1)
        assert self.found(tmp_path) == [(5, (0, 1))]

    def test_one_manifest_may_name_all(self, tmp_path: Path) -> None:
        place = tmp_path / "step-9"
        place.mkdir()
        (place / "all").write_bytes(b"12")
        files = [{"shard": number, "file": "all", "bytes": 2} for number in range(3)]
        (place / "manifest.json").write_text(json.dumps({"shards": 3, "files": files}))
        assert self.found(tmp_path) == [(9, (0, 1, 2))]

    def test_what_makes_no_sense_is_not_there(self, tmp_path: Path) -> None:
        self.put(tmp_path, 0, name="../step-5/shard-0")
        assert self.found(tmp_path) == [(5, ())]
        self.put(tmp_path, 1, shards=3)
        assert self.found(tmp_path) == []
        for text in ("{", "[]", '{"shards": "two"}', '{"shards": 2, "files": 7}', '{"shards": 2, "files": [1, {"shard": -1}]}', "\x00"):
            other = tmp_path / "step-6"
            other.mkdir(exist_ok=True)
            (other / "0.json").write_text(text)
            assert (6, (0,)) not in self.found(tmp_path)

    def test_only_the_newest_steps_are_looked_at_and_a_missing_folder_is_none(self, tmp_path: Path) -> None:
        for step in (1, 20, 3, 100):
            self.put(tmp_path, 0, step=step, shards=1)
        assert self.found(tmp_path) == [(3, (0,)), (20, (0,)), (100, (0,))]
        assert checkpoints_in(tmp_path / "nowhere") == []
