"""Sweeps of the console: asked for, played by processes of their own, cancelled, lost and read."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from scheduler.models import Sweep, Trace
from scheduler.services.forecasts import sweeps
from scheduler.services.forecasts.plays import Program
from scheduler.services.forecasts.sweeps import asked_of, results_of, sweep_ask, sweep_cancel, sweep_run
from scheduler.services.forecasts.traces import trace_add, trace_remove
from scheduler.sweeps.asking import NONE_COUNTS, OFFERED, Asked, asked_faults, knees_told, values_of
from scheduler.sweeps.points import SweepError
from scheduler.sweeps.telling import rows_of
from scheduler.traces.rows import File
from scheduler.whatifs.sweeps import CHARTS, file_of, knees, rows_told
from tests import traces as made
from tests.builders import NOON
from tests.personas import Personas

LOADS = (0.2, 1.0)


def clock() -> Any:
    return NOON


@pytest.fixture
def trace(personas: Personas) -> Trace:
    files = [File("few.json", made.document(jobs=20, every_s=1800))]
    return trace_add(access=personas.access("operator"), title="Few", kind="scenario", files=files, now=NOON)


def begun(personas: Personas, trace: Trace, **asked: Any) -> Sweep:
    wanted = Asked(**({"axis": "load", "values": LOADS, "policies": ("stated", "fifo"), "seeds": 1} | asked))
    return sweep_ask(access=personas.access("operator"), trace=trace, asked=wanted, now=NOON, begin=lambda key: None)


# What is asked for


@given(st.lists(st.integers(1, 400), min_size=1, max_size=8), st.sampled_from([", ", " ", ",", " ,  "]))
def test_values_are_read_however_they_are_parted(numbers: list[int], between: str):
    assert values_of(between.join(map(str, numbers))) == tuple(sorted(set(map(float, numbers))))


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"values": (1.0,)}, "values", "2 to 12 values"),
        ({"values": (0.0, 1.0)}, "values", "0 is not an arrival rate"),
        ({"values": (1.0, float("nan"))}, "values", "nan is not an arrival rate"),
        ({"axis": "nodes", "values": (1.5, 2.0)}, "values", "1.5 is not a number of nodes"),
        ({"axis": "nodes", "values": (1.0, float("inf"))}, "values", "inf is not a number of nodes"),
        ({"policies": ("none",)}, "policies", "There is no policy none"),
        ({"policies": ()}, "policies", "Choose 1 to 6"),
        ({"policies": ("cost",)}, "policies", "no policy cost"),
        ({"seeds": 0}, "seeds", "1 to 10"),
        ({"hours": 0}, "hours", "leave this empty"),
        ({"minutes": 2}, "minutes", "1, 5, 15 or 60"),
        ({"values": tuple(map(float, range(1, 13))), "policies": tuple(OFFERED)[:6], "seeds": 10}, "values", "720 simulations; at most 200"),
    ],
)
def test_what_cannot_be_swept_is_told_at_its_field(asked: dict[str, Any], field: str, words: str):
    faults = asked_faults(Asked(**({"axis": "load", "values": LOADS} | asked)))

    assert list(faults) == [field] and words in faults[field][0]


def test_the_easiest_points_of_each_seed_come_first():
    loads = Asked("load", (0.5, 1.0), ("stated",), 2).points
    nodes = Asked("nodes", (2.0, 4.0), ("stated",), 2).points

    assert [(point.seed, point.value) for point in loads] == [(0, 0.5), (0, 1.0), (1, 0.5), (1, 1.0)]
    assert [(point.seed, point.value) for point in nodes] == [(0, 4.0), (0, 2.0), (1, 4.0), (1, 2.0)]


def test_no_knee_is_told_before_the_easiest_value_was_played():
    asked = Asked("nodes", (2.0, 4.0), ("stated",), 1)
    hard, easy = reversed(asked.points)

    assert knees_told(rows_of({hard: made.POINT}, [made.TYPE]), asked) == ["stated: unknown: 4 nodes was not simulated"]
    assert knees_told(rows_of({easy: made.POINT, hard: made.POINT}, [made.TYPE]), asked) == ["stated: not reached at 2 nodes; sweep smaller ones"]


# How it is played


@pytest.mark.django_db
def test_a_sweep_is_played_to_its_end_and_tells_where_the_queue_grows(personas: Personas, trace: Trace):
    asked = begun(personas, trace, values=(0.2, 4.0))

    assert sweep_run(key=asked.pk, clock=clock) == "done"
    found = Sweep.objects.get(pk=asked.pk)
    assert (found.played, found.points, found.is_cut_off) == (4, 4, False)
    rows = rows_told(found)
    assert [(row.policy, row.value, row.state) for row in rows] == [
        ("stated", 0.2, "completed"),
        ("stated", 4.0, "saturated"),
        ("fifo", 0.2, "completed"),
        ("fifo", 4.0, "saturated"),
    ]
    assert knees(found, rows) == ["stated: 0.2", "fifo: 0.2"]
    assert sweep_run(key=asked.pk, clock=clock) is None, "a doubled call finds that it was taken"


@pytest.mark.django_db
def test_it_says_the_same_as_the_command(personas: Personas, trace: Trace, tmp_path: Path):
    from scheduler.sweeps.command import main

    asked = begun(personas, trace, exact=True)
    sweep_run(key=asked.pk, clock=clock)
    (tmp_path / "few.json").write_text(made.document(jobs=20, every_s=1800))
    assert main([str(tmp_path / "few.json"), "--load", "0.2,1", "--seeds", "1", "--workers", "1", "--out", str(tmp_path / "out")]) == 0

    for point, result in results_of(Sweep.objects.get(pk=asked.pk)).items():
        written = json.loads((tmp_path / "out" / "points" / f"{point.name}.json").read_bytes())
        assert (written["state"], written["figures"]) == (result["state"], result["figures"])


@pytest.mark.django_db
def test_plans_that_are_apart_make_jobs_wait_by_so_much(personas: Personas, trace: Trace):
    """Of 5400 s a tenth is 540: the longest step of all. Waits grow by it at most, and what ran does not change."""
    told = []
    for exact in (True, False):
        asked = begun(personas, trace, exact=exact, values=(0.2, 0.3), policies=("stated",))
        sweep_run(key=asked.pk, clock=clock)
        told.append(Sweep.objects.get(pk=asked.pk))

    assert [found.step_s for found in told] == [0, 300]
    exact, apart = (results_of(found) for found in told)
    assert [point.value for point in exact] == [0.2, 0.3]
    for point, result in exact.items():
        assert result["figures"]["jobs"] == apart[point]["figures"]["jobs"]
        assert 0 <= apart[point]["figures"]["wait_s"]["p95"] - result["figures"]["wait_s"]["p95"] <= 300


@pytest.mark.django_db
def test_one_at_a_time_is_played_and_one_that_was_lost_makes_room(personas: Personas, trace: Trace):
    first = begun(personas, trace)
    with pytest.raises(Conflict, match="Another sweep"):
        begun(personas, trace)

    Sweep.objects.filter(pk=first.pk).update(seen_at=NOON - timedelta(hours=1))
    first.refresh_from_db()
    assert (first.outcome, first.goes_on) == ("failed", False) and "Not started" in first.why_failed
    begun(personas, trace)
    first.refresh_from_db()
    assert first.state == "failed"


@pytest.mark.django_db
def test_who_may_not_start_what_ifs_may_not_sweep(personas: Personas, trace: Trace):
    from django.core.exceptions import PermissionDenied

    with pytest.raises(PermissionDenied):
        sweep_ask(access=personas.access("viewer"), trace=trace, asked=Asked("load", LOADS), now=NOON, begin=lambda key: None)


@pytest.mark.django_db
def test_a_trace_of_one_job_is_refused_and_one_whose_jobs_come_at_once_fails_in_words(personas: Personas):
    access = personas.access("operator")
    one = trace_add(access=access, title="One", kind="scenario", files=[File("one.json", made.document(jobs=1))], now=NOON)
    with pytest.raises(ValidationError) as refused:
        begun(personas, one)
    assert refused.value.message_dict == {"trace": [sweeps.ONE_MOMENT]}
    once = trace_add(access=access, title="Once", kind="scenario", files=[File("once.json", made.document(every_s=0))], now=NOON)
    asked = begun(personas, once)
    assert sweep_run(key=asked.pk, clock=clock) == "failed"
    assert Sweep.objects.get(pk=asked.pk).fault == sweeps.ONE_MOMENT


@pytest.mark.django_db
def test_more_jobs_than_memory_holds_are_refused(personas: Personas, trace: Trace):
    asked = begun(personas, trace, values=(1.0, 100.0), hours=8784)

    assert sweep_run(key=asked.pk, clock=clock) == "failed"
    assert Sweep.objects.get(pk=asked.pk).fault.startswith("About 1,756,800 jobs would come; at most 500,000")


@pytest.mark.django_db
def test_a_trace_that_was_removed_fails_it_and_results_outlive_the_trace(personas: Personas, trace: Trace):
    asked = begun(personas, trace)
    sweep_run(key=asked.pk, clock=clock)
    later = begun(personas, trace)
    trace_remove(access=personas.access("operator"), trace=trace)

    assert sweep_run(key=later.pk, clock=clock) == "failed"
    assert Sweep.objects.get(pk=later.pk).fault == "The trace was removed."
    found = Sweep.objects.get(pk=asked.pk)
    assert (found.trace, found.trace_title, len(rows_told(found))) == (None, "Few", 4)


@pytest.mark.django_db
def test_what_is_cancelled_ends_its_programs_and_keeps_what_was_played(personas: Personas, trace: Trace, monkeypatch: pytest.MonkeyPatch):
    asked, ended = begun(personas, trace, minutes=5), []

    class Endless(Program):
        """Tells a point, and is cancelled then; it would go on for ever."""

        def __init__(self, module: str, *arguments: str, text: bytes) -> None:
            super().__init__(module, text=text.replace(b'"until": 36000000', b'"until": 36000000000'))

        def messages(self, wait: float = 0.25) -> Iterator[dict[str, Any]]:
            yield {"point": 0, "result": made.POINT}
            sweep_cancel(access=personas.access("operator"), found=asked, now=NOON)

        def __exit__(self, *of: object) -> None:
            super().__exit__(*of)
            ended.append(self.code)

    monkeypatch.setattr(sweeps, "Program", Endless)
    assert sweep_run(key=asked.pk, clock=clock) == "cancelled"
    assert set(ended) == {-signal.SIGKILL}
    assert Sweep.objects.get(pk=asked.pk).state == "cancelled"
    assert list(AuditEntry.objects.filter(object_id=asked.public_id).order_by("id").values_list("action", flat=True)) == [
        "sweep.start",
        "sweep.cancel",
    ]
    assert not sweep_cancel(access=personas.access("operator"), found=asked, now=NOON)


@pytest.mark.django_db
def test_when_time_runs_out_what_was_simulated_is_kept(personas: Personas, trace: Trace, monkeypatch: pytest.MonkeyPatch):
    none = begun(personas, trace)
    ticks = iter([0.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks, 1e12))
    assert sweep_run(key=none.pk, clock=clock) == "failed"
    monkeypatch.undo()
    assert Sweep.objects.get(pk=none.pk).fault == sweeps.NOTHING_IN_TIME

    some = begun(personas, trace)
    told = sweeps._save

    def late(sweep: Sweep, at: Any, *, more: bool) -> bool:
        if more:
            monkeypatch.setattr(time, "monotonic", lambda: 1e12)
        return told(sweep, at, more=more)

    monkeypatch.setattr(sweeps, "_save", late)
    assert sweep_run(key=some.pk, clock=clock) == "done"
    monkeypatch.undo()
    found = Sweep.objects.get(pk=some.pk)
    assert found.is_cut_off and asked_of(found).points[0] in results_of(found)


@pytest.mark.django_db
def test_a_program_that_dies_is_told(personas: Personas, trace: Trace, monkeypatch: pytest.MonkeyPatch):
    class Killed(Program):
        def __init__(self, module: str, *arguments: str, text: bytes) -> None:
            super().__init__(module, text=text)
            threading.Thread(target=self._process.kill).start()

    monkeypatch.setattr(sweeps, "Program", Killed)
    asked = begun(personas, trace)
    assert sweep_run(key=asked.pk, clock=clock) == "failed"
    assert Sweep.objects.get(pk=asked.pk).fault.startswith("A process of it was ended by signal 9. If memory was short")


@pytest.mark.django_db
def test_a_program_that_dies_after_a_point_fails_the_sweep_and_the_point_is_shown(
    personas: Personas, trace: Trace, client: Client, monkeypatch: pytest.MonkeyPatch
):
    class Killed(Program):
        """Tells a point that failed, and is gone."""

        def messages(self, wait: float = 0.25) -> Iterator[dict[str, Any]]:
            self._process.kill()
            self._ended = True
            yield {"point": 0, "result": {"state": "failed", "error": "ValueError: none (file.py:1)"}}

    monkeypatch.setattr(sweeps, "Program", Killed)
    asked = begun(personas, trace)
    assert sweep_run(key=asked.pk, clock=clock) == "failed"
    client.force_login(personas.users["operator"])
    page = client.get(f"/what-if/sweeps/{asked.public_id}/").content.decode()
    assert "signal 9 after 1 simulation." in page and "1 of 1 simulations failed. The first: ValueError: none (file.py:1)" in page


@pytest.mark.django_db
def test_a_point_in_whose_time_nobody_came_says_to_enter_more_hours(personas: Personas, trace: Trace):
    row = made.POINT | {"figures": made.POINT["figures"] | {"wait_s": None}}  # type: ignore[operator]
    asked = Asked("load", LOADS, ("stated",), 1)

    assert knees_told(rows_of(dict.fromkeys(asked.points, row), [made.TYPE]), asked) == [f"stated: unknown: {NONE_COUNTS}"]


def test_a_program_ends_with_the_worker_that_began_it(tmp_path: Path):
    """Its parent is killed while a point is played that would take for hours."""
    (tmp_path / "few.json").write_text(made.document(jobs=20))
    begin = f"""
import json, os, subprocess, sys
from pathlib import Path
asked = {{"warm_up": 1, "until": 30000000000, "step": 0, "parent": os.getpid(), "points": [["stated", "load", 1.0, 0]]}}
child = subprocess.Popen([sys.executable, "-m", "scheduler.services.forecasts.swept"], stdin=subprocess.PIPE)
child.stdin.write(json.dumps(asked).encode() + b"\\n" + Path({str(tmp_path / "few.json")!r}).read_bytes())
child.stdin.close()
print(child.pid, flush=True)
child.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", begin], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = Path("/proc", parent.stdout.readline().strip())
    assert child.exists()
    parent.kill()
    parent.wait()
    latest = time.monotonic() + 60
    while child.exists() and time.monotonic() < latest:
        time.sleep(0.1)
    assert not child.exists()


# Pages


@pytest.mark.django_db
def test_the_page_has_knees_charts_and_a_file(personas: Personas, trace: Trace, client: Client):
    asked = begun(personas, trace)
    sweep_run(key=asked.pk, clock=clock)
    client.force_login(personas.users["operator"])
    address = f"/what-if/sweeps/{asked.public_id}/"
    page = client.get(address).content.decode()

    assert "stated: " in page and page.count("chart-body") == len(CHARTS)
    table = b"".join(client.get(f"{address}charts/allocated?format=csv").streaming_content).decode()  # type: ignore[attr-defined]
    assert table.removeprefix("\ufeff").startswith("Arrival rate,stated")
    assert client.get(f"{address}charts/none").status_code == 404
    sent = client.get(f"{address}file")
    assert sent.headers["Content-Disposition"] == f'attachment; filename="sweep-{asked.public_id}.html"'
    assert sent.content.decode() == file_of(Sweep.objects.get(pk=asked.pk)) and "Knee" in sent.content.decode()
    assert (
        "Change and run again" in page
        and f'value="{trace.public_id}" selected' in client.get(f"/what-if/sweeps/new/?like={asked.public_id}").content.decode()
    )


@pytest.mark.django_db
def test_the_form_says_what_is_wrong_at_its_field(personas: Personas, trace: Trace, client: Client):
    client.force_login(personas.users["operator"])
    sent = {"trace": trace.public_id, "axis": "load", "values": "1 x", "policies": ["stated"], "seeds": "1", "minutes": "1"}

    answer = client.post("/what-if/sweeps/new/", sent)
    assert answer.status_code == 422 and "x is not a number." in answer.content.decode()
    answer = client.post("/what-if/sweeps/new/", sent | {"values": "1 1"})
    assert answer.status_code == 422 and "Enter 2 to 12 values." in answer.content.decode()
    answer = client.post("/what-if/sweeps/new/", sent | {"values": "0.5, 1", "trace": "tr-none"})
    assert answer.status_code == 422 and "not one of the available choices" in answer.content.decode()


@pytest.mark.django_db
def test_without_a_trace_the_form_leads_to_one(personas: Personas, client: Client):
    client.force_login(personas.users["operator"])

    assert 'href="/what-if/traces/new/"' in client.get("/what-if/sweeps/new/").content.decode()


def test_a_value_that_is_no_number_is_named():
    with pytest.raises(SweepError, match="eight is not a number"):
        values_of("4 eight")
