"""Step times by file: a job writes what it likes, and the console reads it, perhaps as root."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scheduler.backends import stepfiles
from scheduler.backends.hostile_files import DEEPEST
from scheduler.backends.manifests import Looker
from scheduler.backends.stepfiles import steps_in

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def put(folder: Path, name: str, document: object, *, after: float = 0.0) -> None:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    (folder / name).write_bytes(text)
    os.utime(folder / name, (NOON.timestamp() + after,) * 2)


def test_ranks_tell_by_their_own_files_or_one_for_all(tmp_path: Path) -> None:
    put(tmp_path, "steps-1.json", {"ranks": 4, "seconds": {"1": 1.5}}, after=2.25)
    put(tmp_path, "steps.json", {"ranks": 4, "seconds": {"0": 1, "3": 2.5}, "flops": 6.1e17, "precision": "fp8"})
    put(tmp_path, "steps.json.new", {"ranks": 4, "seconds": {"0": 9.0}})

    told = Looker()
    told.seen(tmp_path, wait=10)
    first, second = told.steps(tmp_path)
    assert (first.at, first.ranks, first.seconds, first.flops, first.precision) == (NOON, 4, ((0, 1.0), (3, 2.5)), 6.1e17, "fp8")
    assert (second.at.microsecond, second.seconds, second.flops) == (250_000, ((1, 1.5),), None)


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"ranks": 1, "seconds": ' + b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1) + b"}",
        b'{"ranks": ' + b"9" * 10_000 + b', "seconds": {}}',
        b" " * (stepfiles.LARGEST + 1),
        {"ranks": True, "seconds": {"0": 1}},
        {"ranks": 0, "seconds": {"0": 1}},
        {"ranks": 65_537, "seconds": {"0": 1}},
        {"ranks": 4, "seconds": [1, 2]},
        [1],
    ],
    ids=range(11),
)
def test_a_spoilt_file_says_nothing_and_does_no_harm_to_the_others(tmp_path: Path, spoilt: object) -> None:
    put(tmp_path, "steps-0.json", spoilt)
    put(tmp_path, "steps-1.json", {"ranks": 4, "seconds": {"1": 1.5}})

    assert [one.seconds for one in steps_in(tmp_path)] == [((1, 1.5),)]


def test_impossible_figures_are_left_out_and_the_others_count(tmp_path: Path) -> None:
    figures = b'{"0": 1.0, "1": -1, "2": NaN, "3": Infinity, "4": true, "5": "1", "6": 1e999, "7": null, "8": 1.0, "-1": 1, "\xd9\xa3": 1, "0x1": 1}'
    put(tmp_path, "steps.json", b'{"ranks": 8, "seconds": ' + figures + b', "flops": 1e40, "precision": "<script>"}')

    (one,) = steps_in(tmp_path)
    assert (one.seconds, one.flops, one.precision) == (((0, 1.0),), None, "bf16")


def test_links_pipes_and_folders_are_not_read_and_all_files_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    own = tmp_path / "own"
    put(tmp_path, "secret.json", {"ranks": 1, "seconds": {"0": 1}})
    (own / "steps.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(own / "steps-0.json")
    (own / "steps-1.json").mkdir()
    assert steps_in(own) == ()
    (tmp_path / "link").symlink_to(own)
    assert steps_in(tmp_path / "link") == steps_in(tmp_path / "nowhere") == ()

    for rank in range(2, 6):
        put(own, f"steps-{rank}.json", {"ranks": 8, "seconds": {str(rank): 1}})
    monkeypatch.setattr(stepfiles, "LARGEST_ALL", 2 * (own / "steps-2.json").stat().st_size)
    assert len(steps_in(own)) == 2
    (own / "steps-1.json").rmdir()
    put(own, "steps-1.json", b" " * (stepfiles.LARGEST_ALL + 1))
    assert len(steps_in(own)) == 2, "one that is too large keeps none of the others out"
