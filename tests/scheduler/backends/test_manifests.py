"""A job writes what it likes into its checkpoint folder, and the console reads it, perhaps as root."""

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from scheduler.backends import hostile_files, manifests
from scheduler.backends.manifests import Found, Looker, checkpoints_in

GOOD = {"shards": 1, "files": [{"shard": 0, "file": "shard", "bytes": 4}]}


def step(folder: Path, number: int, *, manifest: bytes | None = None, name: str = "0.json") -> Path:
    place = folder / f"step-{number}"
    place.mkdir()
    (place / "shard").write_bytes(b"data")
    (place / name).write_bytes(json.dumps(GOOD).encode() if manifest is None else manifest)
    return place


def seen(folder: Path) -> list[tuple[int, tuple[int, ...]]]:
    return [(one.step, one.shards) for one in checkpoints_in(folder)]


def nested(depth: int) -> bytes:
    return b'{"shards": 1, "files": ' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    "manifest",
    [
        b"[" * 200_000,
        nested(200_000),
        nested(hostile_files.DEEPEST + 1),
        b'{"a":' * 100_000,
        b'"' + b"[" * 200_000,
        b'{"shards": ' + b"9" * 10_000 + b"}",
        b'{"shards": true, "files": []}',
        b'{"shards": 1, "files": [{"shard": 0, "file": "a\\u0000b", "bytes": 4}]}',
        b'{"shards": 1, "files": [{"shard": 0, "file": "../step-1/shard", "bytes": 4}]}',
        b"\xff\xfe",
        b" " * (manifests.LARGEST_MANIFEST + 1),
    ],
    ids=range(11),
)
def test_a_spoilt_manifest_is_no_checkpoint_and_no_harm_to_the_others(tmp_path: Path, manifest: bytes) -> None:
    step(tmp_path, 1)
    step(tmp_path, 2, manifest=manifest)

    found = seen(tmp_path)
    assert (1, (0,)) in found
    assert (2, (0,)) not in found


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    for number in range(1, 4):
        step(tmp_path, number)
    os.mkfifo(tmp_path / "step-1" / "1.json")
    (tmp_path / "step-2" / "1.json").symlink_to("/dev/zero")
    (tmp_path / "step-3" / "1.json").mkdir()

    assert seen(tmp_path) == [(1, (0,)), (2, (0,)), (3, (0,))]


def test_no_link_leads_to_a_file_or_a_folder_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = step(elsewhere, 5)
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "step-5").symlink_to(place)
    linked = step(folder, 4)
    (linked / "shard").unlink()
    (linked / "shard").symlink_to(place / "shard")  # whether a secret file has a size would be told by whether it counts

    assert seen(folder) == [(4, ())]
    (tmp_path / "link").symlink_to(folder)
    assert seen(tmp_path / "link") == []


def test_names_are_bounded_and_a_step_is_seen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step(tmp_path, 7)
    (tmp_path / "step-007").mkdir()
    (tmp_path / "step-٣").mkdir()
    assert [number for number, _ in seen(tmp_path)] in ([7], [])

    monkeypatch.setattr(hostile_files, "MOST_NAMES", 2)
    assert seen(tmp_path) == []


def test_a_time_that_no_calendar_has_is_no_fault(tmp_path: Path) -> None:
    place = step(tmp_path, 1)
    os.utime(place / "0.json", (2**33, 2**33))
    assert len(checkpoints_in(tmp_path)) <= 1


def test_whoever_asks_does_not_wait_for_a_file_system_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step(tmp_path, 1)
    looker, answers = Looker(), threading.Event()
    real = checkpoints_in

    def hangs(folder: Path, known: manifests.Digests) -> list[Found]:
        assert answers.wait(30)
        return real(folder, known)

    monkeypatch.setattr(manifests, "checkpoints_in", hangs)
    assert [looker.seen(tmp_path, wait=0.0) for _ in range(3)] == [([], False)] * 3
    assert sum(thread.name == "checkpoints" for thread in threading.enumerate()) == 1, "one thread, however often it is asked for"
    answers.set()
    found, fresh = looker.seen(tmp_path, wait=30)
    assert ([one.step for one in found], fresh) == ([1], True)


def test_a_look_that_began_before_the_end_of_its_run_is_not_its_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looker, answers, real = Looker(), threading.Event(), checkpoints_in

    def slow(folder: Path, known: manifests.Digests) -> list[Found]:
        found = real(folder, known)
        assert answers.wait(30)
        return found

    monkeypatch.setattr(manifests, "checkpoints_in", slow)
    assert looker.seen(tmp_path, wait=0.0) == ([], False)
    step(tmp_path, 1)
    assert looker.seen(tmp_path, wait=0.0, last=True) == ([], False)
    answers.set()
    found, fresh = looker.seen(tmp_path, wait=30, last=True)
    assert ([one.step for one in found], fresh) == ([1], True)


def test_a_folder_that_takes_long_is_looked_at_seldom_but_once_more_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = iter(range(0, 100_000, 50)), []

    class Time:
        @staticmethod
        def monotonic() -> float:
            return next(clock)

    monkeypatch.setattr(manifests, "time", Time)
    monkeypatch.setattr(manifests, "checkpoints_in", lambda folder, _known: looks.append(folder) or [])
    looker = Looker()
    for _ in range(20):
        looker.seen(tmp_path, wait=30)
    assert 1 < len(looks) < 6, "each time it took a tenth of what followed"
    before = len(looks)
    looker.seen(tmp_path, wait=30, last=True)
    assert len(looks) == before + 1


def test_a_shard_with_another_digest_is_not_there_and_each_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(text: bytes) -> bytes:
        return json.dumps({"shards": 1, "files": [{"shard": 0, "file": "shard", "bytes": 4, "sha256": hashlib.sha256(text).hexdigest()}]}).encode()

    step(tmp_path, 1, manifest=of(b"data"))
    torn = step(tmp_path, 2, manifest=of(b"more"))
    step(tmp_path, 3, manifest=b'{"shards": 1, "files": [{"shard": 0, "file": "shard", "bytes": 4, "sha256": []}]}')
    read: list[object] = []
    digest = manifests._digest
    monkeypatch.setattr(manifests, "_digest", lambda file: read.append(file) or digest(file))
    known = manifests.Digests()

    for _ in range(2):
        assert [(one.step, one.shards) for one in checkpoints_in(tmp_path, known)] == [(1, (0,)), (2, ()), (3, ())]
    assert len(read) == 3, "once each"
    (torn / "shard").write_bytes(b"more")
    os.utime(torn / "shard", (1, 1))
    assert [(one.step, one.shards) for one in checkpoints_in(tmp_path, known)][1] == (2, (0,))
    assert len(read) == 4
    (torn / "shard").unlink()
    (torn / "shard").symlink_to(tmp_path / "step-1" / "shard")
    assert [(one.step, one.shards) for one in checkpoints_in(tmp_path, known)][1] == (2, ())


def test_the_digest_of_a_large_checkpoint_does_not_delay_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still but for the digest, which takes 500 s."""
    clock = [0.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return clock[0]

    def digest(file: BinaryIO) -> str:
        clock[0] += 500
        return hashlib.sha256(file.read()).hexdigest()

    monkeypatch.setattr(manifests, "time", Time)
    monkeypatch.setattr(manifests, "_digest", digest)
    files = [{"shard": 0, "file": "shard", "bytes": 4, "sha256": hashlib.sha256(b"data").hexdigest()}]
    step(tmp_path, 1, manifest=json.dumps({"shards": 1, "files": files}).encode())
    looker = Looker()
    assert [one.shards for one in looker.seen(tmp_path, wait=30)[0]] == [(0,)]
    step(tmp_path, 2)

    clock[0] += manifests.REST_AFTER_DIGESTS
    assert [one.step for one in looker.seen(tmp_path, wait=30)[0]] == [1, 2]
    assert clock[0] == 500 + manifests.REST_AFTER_DIGESTS, "and it is not read again"


def test_one_glance_tells_which_folders_are_empty(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(50)]
    for folder in folders:
        folder.mkdir()
    step(folders[7], 1)
    (tmp_path / "link").symlink_to(folders[0])
    looker = Looker()

    looker.glance([*folders, tmp_path / "link", tmp_path / "gone"], wait=30)

    # Not waited for: what was not seen to be empty is looked at by itself.
    assert [looker.seen(folder, wait=0.0, last=True) for folder in folders if folder != folders[7]] == [([], True)] * 49
    found, fresh = looker.seen(folders[7], wait=30, last=True)
    assert ([one.step for one in found], fresh) == ([1], True)
    step(folders[0], 2)
    found, _ = looker.seen(folders[0], wait=30, last=True)
    assert [one.step for one in found] == [2], "a glance is good for one answer"
