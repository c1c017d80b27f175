"""Traces in the what-if lab: added from files, replayed on their own fleet and on this one, and refused in words."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode, QuotaShare
from quotas.services.changes import Wanted as Drafted
from quotas.services.changes import change_draft
from scheduler.models import QuotaReplay, Trace
from scheduler.scenarios.reading import load, parse
from scheduler.services.forecasts import plays, replays, traces
from scheduler.services.forecasts.replays import replay_run
from scheduler.services.forecasts.traces import trace_add, trace_present, trace_remove, trace_scenario
from scheduler.services.forecasts.what_ifs import replay_teams, what_if_ask
from scheduler.simulation.span import Cost
from scheduler.simulation.workload import works_drawn
from scheduler.simulation.world import World
from scheduler.traces.rows import File, Shape, shape_of
from scheduler.whatifs.telling import measures
from scheduler.whatifs.traces import Fitted, TraceRefused, coming, places_of, rows_of, trace_read, works_of
from scheduler.whatifs.wanted import NodeKind, Wanted
from tests import builders
from tests import traces as made
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100

OWN = NodeKind("default", made.TYPE, 8)
ADD = "/what-if/traces/new/"


# What files hold


def read(text: str | None = None, kind: str = "scenario", **asked: Any):
    return trace_read(kind, [File("few.json", made.document() if text is None else text)], **asked)


def test_a_scenario_is_kept_with_its_fleet_apart():
    found = read()

    assert (len(found.scenario.jobs), found.hours) == (6, 4), "the last comes after 2.5 hours and takes 1.5"
    assert [job.name for job in load(found.document).jobs] == [f"job-{place}" for place in range(6)]
    assert (load(found.fleet).nodes, load(found.fleet).jobs) == (found.scenario.nodes, ())


def test_the_first_jobs_are_those_that_come_first():
    turned = made.scenario() | {"jobs": made.scenario()["jobs"][::-1]}

    assert [job.name for job in read(json.dumps(turned), limit=2).scenario.jobs] == ["job-0", "job-1"]


def test_rows_of_a_public_trace_that_cannot_be_replayed_are_counted():
    nodes, pods = made.openb()
    found = trace_read("openb", [File("nodes.csv", nodes), File("pods.csv", pods)])

    assert len(found.scenario.jobs) == 6
    assert found.left_out == [("never started, so the run time is unknown", 1)]


@pytest.mark.parametrize(
    ("kind", "text", "field", "words"),
    [
        ("scenario", "{", "files", "few.json is not JSON"),
        ("scenario", "[" * 100_000, "files", "few.json is not JSON"),
        ("scenario", "[]", "files", "few.json is not a scenario"),
        ("scenario", "{}", "files", "format"),
        ("scenario", json.dumps(made.scenario(jobs=0)), "files", "It has no jobs"),
        ("scenario", json.dumps(made.scenario() | {"jobs": {"a": 1}}), "files", "jobs"),
        ("scenario", json.dumps(made.scenario() | {"jobs": [1, "x", None]}), "files", "jobs"),
        ("scenario", json.dumps(made.scenario() | {"now": "9999-12-31T23:00:00Z"}), "files", "It begins outside"),
        ("openb", "sn\n", "files", "No list of pods"),
        ("openb", made.openb()[1], "nodes", "Nodes are either those of a list"),
        ("openb", made.openb()[1] + '"' + "x" * 300_000, "nodes", "the field Nodes"),
        ("gavel", "a\tb\n", "files", "JSON file of throughputs"),
        ("gavel", '{"v100": 1}', "files", "throughputs"),
        ("helios", "date,total\n", "files", "cluster_log.csv"),
        ("philly", "[" * 100_000, "files", "few.json"),
        ("philly", "\x00\x01\x02", "files", "few.json"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(kind: str, text: str, field: str, words: str):
    with pytest.raises(TraceRefused) as refused:
        read(text, kind)

    told = refused.value.faults
    assert any(words in one for texts in told.values() for one in texts), told
    assert set(told) <= {"files", "nodes", "limit"}


def test_no_name_that_no_column_holds_is_kept():
    rows = made.scenario()
    rows["quotas"][0]["name"] = rows["jobs"][0]["quota"] = "a\0b"
    with pytest.raises(TraceRefused, match="U\\+0000"):
        read(json.dumps(rows))


def test_what_is_too_large_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    for limit, field, words in (
        ("MOST_BYTES", "files", "gpufleet trace"),
        ("MOST_JOBS", "limit", "Enter how many"),
        ("MOST_NODES", "files", "nodes"),
        ("MOST_KINDS", "files", "kinds"),
        ("MOST_QUEUES", "files", "2 queues"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(f"scheduler.whatifs.traces.{limit}", 0)
            with pytest.raises(TraceRefused) as refused:
                read()
        assert words in refused.value.faults[field][0]
    with pytest.raises(TraceRefused) as refused:
        read(kind="openb", shapes=[Shape(9_999, 8), Shape(2, 8)])
    assert list(refused.value.faults) == ["nodes"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x1e", "\u2028"])
def test_so_many_short_rows_are_refused_before_they_are_read(end: str):
    """A million of them are within 16 MiB, and took a minute and 2 GB of a web request."""
    table, row = '{"v100": {"(\'A3C\', 1)": {"null": 4.2}}}', "A3C\t\t\t\t\t9\t1\t\t-1\t0"
    files = [File("t.json", table), File("g.trace", f"{row}{end}" * 200_001)]

    with pytest.raises(TraceRefused) as refused:
        trace_read("gavel", files, limit=1)
    assert refused.value.faults == {"files": [refused.value.faults["files"][0]]}
    assert "200,001 rows" in refused.value.faults["files"][0] and "gpufleet trace" in refused.value.faults["files"][0]
    assert rows_of("gavel", files[0]) == rows_of("philly", File("log", '[\n{"jobid":\n1}\n]')) == 0, "JSON has its rows anyhow"
    assert rows_of("philly", File("list", "[a,machineId\n\n")) == rows_of("openb", File("list", "[a\n\n")) == 2, "a table all the same"


def test_too_many_nodes_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch):
    """Each was read as a node of the engine first, which takes most of the time."""
    monkeypatch.setattr("scheduler.whatifs.traces.load", lambda document: pytest.fail("it was read"))
    machines = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{number},1,1,1,x\n" for number in range(10_001))

    with pytest.raises(TraceRefused, match="10,001 nodes; at most 10,000") as refused:
        trace_read("openb", [File("nodes.csv", machines), File("pods.csv", made.openb()[1])])
    assert [*refused.value.faults] == ["files"]


def test_a_fleet_of_too_many_kinds_of_nodes_is_refused():
    """Each kind is a field of a new what-if: with 9,000 the page took 10 s, and no browser could send it."""
    rows = made.scenario(nodes=101)
    for place, row in enumerate(rows["nodes"]):
        row["gpu_type"] = f"t{place}"
    del rows["jobs"][0]["roles"][0]["gpu_types"]

    with pytest.raises(TraceRefused, match="101 kinds of nodes; at most 100"):
        read(json.dumps(rows | {"jobs": rows["jobs"][:1]}))


def test_a_value_that_is_longer_than_any_is_refused_with_its_line():
    with pytest.raises(TraceRefused) as refused:
        trace_read("openb", [File("pods.csv", made.openb()[1] + '"' + "x" * 300_000)], [Shape(1, 8)])

    assert "pods.csv, line 9: field larger than field limit" in refused.value.faults["files"][0]


@pytest.mark.parametrize("text", ["", "x", "4", "0x8", "2x0", "2x65", "1e3x8", "9999999999999x8", "²x8"])
def test_nodes_are_named_as_people_write_them(text: str):
    with pytest.raises(ValueError, match="such as 6x4:v100"):
        shape_of(text)


def test_queues_have_the_quota_node_of_their_path_or_name():
    paths = {"acme", "acme/red", "acme/blue", "else/blue"}

    assert places_of(["acme/red", "red", "blue", "green"], paths, "") == {"acme/red": "acme/red", "red": "acme/red"}
    assert places_of(["blue", "green"], paths, "acme") == {"blue": "acme", "green": "acme"}


def test_what_another_fleet_lacks_is_not_asked_for():
    rows = made.scenario() | {"topology": {"levels": ["rack"]}}
    rows["nodes"][0]["path"] = {"rack": "r0"}
    rows["jobs"][0] |= {"topology": {"required": "rack"}, "throughput": {made.TYPE: 0.5}}
    kind = parse(rows).jobs[0].kind
    there, other = Fitted({made.TYPE, "k80"}, ("cluster", "rack", "node")).kind(kind), Fitted({"k80"}, ("cluster", "node")).kind(kind)

    assert (there.roles[0].gpu_types, there.placing.required, there.throughput) == ((made.TYPE,), "rack", kind.throughput)
    assert (other.roles[0].gpu_types, other.placing.required, other.throughput) == ((), None, ())
    none = parse(rows | {"jobs": [rows["jobs"][0] | {"throughput": {"k80": 0.0}}]}).jobs[0].kind
    assert Fitted({"k80"}, ()).kind(none).throughput == (), "it would run nowhere"


def test_what_runs_as_a_scenario_begins_comes_first():
    rows = made.scenario(jobs=2)
    del rows["jobs"][1]["work_s"]
    found = parse(rows)

    assert [one.after for one in coming(found, 0, 9)] == [2, 1_800_000]
    assert works_of(found)["job-1"] > 0, "it is drawn, as gpufleet simulate draws it"


def test_what_has_run_before_a_scenario_begins_has_the_rest_of_its_work():
    """As in `gpufleet simulate`: a scenario of a moment had each job that ran begin anew."""
    rows = made.scenario(jobs=3, work_s=5400)
    for place, since in ((0, 3600), (1, 86_400), (2, 7200)):
        workers = [{"role": "worker", "index": 0, "node": "n0", "gpus": [2 * place, 2 * place + 1]}]
        rows["jobs"][place] |= {"submitted": -since, "state": "running", "started": -since, "workers": workers}
        rows["jobs"][place]["roles"][0]["gpus"] = 2
    rows["jobs"][0]["throughput"] = {made.TYPE: 0.5}
    del rows["jobs"][1]["work_s"]
    found = parse(rows)

    left = {one.job.name: one.work for one in coming(found, 0, 9)}
    assert left["job-0"] == 3_600_000, "an hour at half the speed"
    assert left["job-1"] > 0, "it has outlived what was drawn"
    assert "job-2" not in left, "it should have ended"
    assert {one.job.name: one.work for one in coming(found, 1, 9) if one.job.name == "job-0"} == {}
    lives = World(found, works=works_drawn(found, 0))
    lives.run()
    assert [lives.lives[name].ended - found.now for name in ("job-0", "job-1")] == [2 * left["job-0"], left["job-1"]]


def test_hours_in_the_middle_begin_with_what_would_run_then():
    found = coming(parse(made.scenario()), 2, 1)

    assert [(one.job.name, one.after, one.work) for one in found] == [
        ("job-2", 0, 1_800_000),
        ("job-3", 0, 3_600_000),
        ("job-4", 2, 5_400_000),
        ("job-5", 1_800_000, 5_400_000),
    ]
    assert [one.job.name for one in coming(parse(made.scenario()), 3, 1)] == ["job-4", "job-5"]


# Kept


pytestmark = pytest.mark.django_db


def add(personas: Personas, who: str = "superuser", **asked: Any) -> Trace:
    return trace_add(access=personas.access(who), title="Few", kind="scenario", files=[File("few.json", made.document(**asked))], now=NOON)


def test_a_trace_is_added_and_removed_with_an_entry_each(personas: Personas):
    found = add(personas)
    assert (found.jobs, found.gpus, found.nodes, found.queues, found.hours) == (6, 8, 1, ["blue", "red"], 4)
    assert [job.work_ms for job in trace_scenario(found).jobs] == [5_400_000] * 6
    assert [(str(one.kind), one.nodes) for one in trace_present(found)[1]] == [("default/v100/8", 1)]

    trace_remove(access=personas.access("superuser"), trace=found)
    assert not Trace.objects.exists()
    assert [*AuditEntry.objects.order_by("pk").values_list("action", flat=True)][-2:] == ["trace.add", "trace.remove"]


def test_no_more_are_kept_than_so_many(personas: Personas, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traces, "MOST_TRACES", 1)
    add(personas)
    with pytest.raises(Conflict, match="Remove one first"):
        add(personas)


@pytest.mark.parametrize("kind", ["openb", "helios", "philly", "gavel"])
@pytest.mark.parametrize("text", ["a\rb", "a,b\rc\n1,2", '"'])
def test_a_first_line_that_is_no_row_is_told_and_breaks_nothing(kind: str, text: str):
    with pytest.raises(TraceRefused) as refused:
        trace_read(kind, [File("rows.csv", text)], [shape_of("2x8:h100")])
    assert refused.value.faults["files"]


def test_a_process_reads_one_at_a_time(personas: Personas, client: Client):
    """The second is told so at once; it does not wait behind the first with a connection in its hands."""
    client.force_login(personas.users["superuser"])
    upload = {"title": "Few", "kind": "scenario"}

    def sent() -> Any:
        return client.post(ADD, upload | {"files": SimpleUploadedFile("few.json", made.document().encode())})

    with traces._reading:
        refused = sent()
    assert (refused.status_code, Trace.objects.count()) == (409, 0)
    assert "Another trace is being read just now." in refused.content.decode()
    assert (sent().status_code, Trace.objects.count()) == (302, 1)


def test_a_file_that_breaks_its_reader_is_told_at_its_field(personas: Personas, monkeypatch: pytest.MonkeyPatch, caplog):
    def breaks(*_: Any) -> Any:
        raise KeyError("a column")

    monkeypatch.setattr("scheduler.traces.openb.imported", breaks)
    with pytest.raises(ValidationError) as refused:
        trace_add(access=personas.access("superuser"), title="x", kind="openb", files=[File("a", "b")], now=NOON)

    assert refused.value.message_dict == {"files": ["The files cannot be read as a trace of openb (Alibaba) (KeyError)."]}
    assert "could not be read" in caplog.text


# Replayed


def play(personas: Personas, trace: Trace, wanted: Mapping[str, Any], change: Any = None, who: str = "superuser") -> QuotaReplay:
    asked = Wanted(trace=trace.public_id, **wanted)
    there = trace_present(trace) if asked.on_own_fleet else None
    found = what_if_ask(access=personas.access(who), wanted=asked, change=change, now=NOON, begin=lambda key: None, trace=trace, there=there)
    replay_run(key=found.pk, clock=lambda: NOON)
    found.refresh_from_db()
    return found


def test_one_more_node_ends_the_wait_of_a_trace_on_its_own_fleet(personas: Personas, client: Client):
    found = play(personas, add(personas), {"nodes": {OWN: 1}})

    assert (found.state, found.fault, found.title) == ("done", "", "1 more node with 8 v100 in default")
    by = {one.key: one for one in measures(found.figures, found.hours)}
    assert by["gpus"].told == ("8", "16") and (found.hours, found.of_hours, found.skipped_hours) == (4, 4, 0)
    waited, late = by["wait_all_p95"].before, by["wait_all_p95"].after
    assert waited is not None and late is not None and waited > 1800 > late == 0
    assert [(team.path, team.jobs) for team in replay_teams(personas.access("viewer"), found)] == [("red", 3), ("blue", 3)]

    client.force_login(personas.users["superuser"])
    page = client.get(reverse("what-if", args=[found.public_id])).content.decode()
    assert "Trace <a" in page and "its own fleet" in page and "By queue" in page
    file = client.get(reverse("what-if-chart", args=[found.public_id, "allocated"]), {"format": "csv"})
    assert b"".join(file).decode().splitlines()[1].startswith("2024-01-01")
    told = client.get(f"/api/v1/what-ifs/{found.public_id}").json()
    assert (told["trace"], told["fleet"], told["result"]["begins_at"]) == (found.asked["trace"], "trace", "2024-01-01T00:00:00Z")


def test_a_trace_is_replayed_on_this_fleet_under_a_draft_of_its_quotas(personas: Personas):
    builders.node("n0", gpus=8)
    for path, milli in {"acme": 8000, "acme/research": 8000, "acme/research/nlp": 8000}.items():
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=milli)
    leaf = personas.nodes["acme/research/nlp"]
    edits = [{"op": "update", "node": leaf.public_id, "set": {"shares": {H100: {"guaranteed_milli": 4000, "limit_milli": 4000}}}}]
    change = change_draft(access=personas.access("superuser"), wanted=Drafted(edits), now=NOON)

    found = play(personas, add(personas), {"here": True, "queue": leaf.path}, change)

    assert (found.state, found.fault) == ("done", "")
    by = {one.key: one for one in measures(found.figures, found.hours)}
    assert by["finished"].before is not None and by["finished"].after is not None
    assert by["finished"].before > by["finished"].after, "a limit of 4 GPUs lets one of them run at a time"
    assert [team.path for team in replay_teams(personas.access("superuser"), found)] == [leaf.path]
    assert replay_teams(personas.access("stranger"), found) == []


def test_teams_of_the_own_past_are_shown_to_those_who_see_them(personas: Personas):
    """`gpufleet trace own` names queues by their quota node; on its own fleet these are rows of the result."""
    ours, others = "acme/research/nlp", "acme/product/search"
    rows = made.scenario()
    rows["quotas"] = [{"name": "acme"}, *({"name": path, "parent": "acme"} for path in (ours, others))]
    for place, row in enumerate(rows["jobs"]):
        row["quota"] = (ours, others)[place % 2]
    files = [File("own.json", json.dumps(rows))]
    trace = trace_add(access=personas.access("operator"), title="Own", kind="scenario", files=files, now=NOON)
    found = play(personas, trace, {"policy": {"order": "fifo"}}, who="operator")

    assert found.state == "done"
    for who, paths in (("operator", [others, ours]), ("viewer", [ours]), ("quota_admin", [ours])):
        client = personas.client(who)
        assert sorted(one.path for one in replay_teams(personas.access(who), found)) == paths, who
        assert client.get(f"/api/v1/traces/{trace.public_id}").json()["queues"] == paths, who
        assert client.get("/api/v1/traces").json()["items"][0]["queues"] == paths, who
        for address in (f"/what-if/{found.public_id}/", f"/what-if/traces/{trace.public_id}/", f"/api/v1/what-ifs/{found.public_id}"):
            assert ("product" in client.get(address).content.decode()) == (others in paths), (who, address)
        chart = b"".join(client.get(f"/what-if/{found.public_id}/charts/teams", {"format": "csv"})).decode()
        assert ("search" in chart) == (others in paths), who
    QuotaNode.objects.filter(path=others).update(path="acme/product/found", name="found")
    with pytest.raises(ValidationError) as refused:
        play(personas, trace, {"here": True, "policy": {"order": "fifo"}}, who="quota_admin")
    assert refused.value.message_dict == {"queue": ["Choose a quota node for queues that have none of their name."]}


def test_so_many_hours_of_a_trace_are_replayed_as_are_wanted(personas: Personas):
    found = play(personas, add(personas), {"policy": {"order": "fifo"}, "first_hours": 2})

    assert (found.state, found.hours, found.figures["before"]["came"]) == ("done", 2, 4)
    late = play(personas, add(personas), {"policy": {"order": "fifo"}, "from_hour": 2, "first_hours": 1})
    assert (late.state, late.hours, late.figures["before"]["came"], late.figures["before"]["finished"]) == ("done", 1, 4, 2)


def test_where_there_is_no_time_for_all_the_first_hours_are_replayed(personas: Personas, monkeypatch: pytest.MonkeyPatch, client: Client):
    monkeypatch.setattr(plays.Pair, "cost", property(lambda pair: Cost(1e5, 60.0)))
    monkeypatch.setattr(replays, "SECONDS", 30.0)
    found = play(personas, add(personas), {"policy": {"placement": "spread"}})

    assert (found.state, found.hours, found.skipped_hours) == ("done", 1, 3)
    client.force_login(personas.users["superuser"])
    assert "Only the first 1 of 4 hours" in client.get(reverse("what-if", args=[found.public_id])).content.decode()


def test_a_trace_that_was_removed_meanwhile_is_told(personas: Personas):
    trace = add(personas)
    wanted, there = Wanted(trace=trace.public_id, policy={"order": "fifo"}), trace_present(trace)
    found = what_if_ask(access=personas.access("superuser"), wanted=wanted, change=None, now=NOON, begin=lambda key: None, trace=trace, there=there)
    trace_remove(access=personas.access("superuser"), trace=trace)
    replay_run(key=found.pk, clock=lambda: NOON)
    found.refresh_from_db()

    assert (found.state, found.fault, found.replays) == ("failed", "The trace was removed.", "Few")
    client = personas.client("superuser")
    assert client.get(reverse("what-if", args=[found.public_id])).status_code == 200
    assert client.get(reverse("what-if-new"), {"like": found.public_id}).status_code == 200


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, ""),
        ({"here": True, "policy": {"placement": "spread"}}, "queue"),
        ({"here": True, "queue": "acme/none", "policy": {"placement": "spread"}}, "queue"),
        ({"nodes": {NodeKind("default", "a100", 8): 1}}, "nodes.0.gpu_type"),
        ({"nodes": {OWN: -2}}, "nodes.0.count"),
        ({"from_hour": 4, "policy": {"order": "fifo"}}, "from_hour"),
    ],
)
def test_what_cannot_be_replayed_is_told_at_its_field(personas: Personas, asked: Mapping[str, Any], field: str):
    with pytest.raises(ValidationError) as refused:
        play(personas, add(personas), asked)

    assert [*refused.value.message_dict] == [field]


def test_a_quota_node_that_one_does_not_see_is_not_there(personas: Personas):
    asked = {"here": True, "queue": "acme/product/search", "policy": {"placement": "spread"}}
    with pytest.raises(ValidationError, match="There is no quota node acme/product/search"):
        play(personas, add(personas), asked, who="quota_admin")


# Pages and the API


def upload(text: bytes | str, name: str = "few.json") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, text.encode() if isinstance(text, str) else text)


def test_a_trace_is_added_at_a_page_and_replayed(personas: Personas, client: Client):
    client.force_login(personas.users["superuser"])
    nodes, pods = made.openb()
    sent = {"title": "Made", "kind": "openb", "files": [upload(nodes, "nodes.csv"), upload(pods, "pods.csv")]}
    page = client.post(ADD, sent, follow=True)

    trace = Trace.objects.get()
    assert page.redirect_chain == [(reverse("trace", args=[trace.public_id]), 302)]
    assert "Never started, so the run time is unknown" in page.content.decode()
    assert trace.title in client.get("/what-if/traces/").content.decode()
    form = client.get("/what-if/new/", {"trace": trace.public_id}).content.decode()
    assert "As in the trace (pack)" in form and "V100M32" in form and "Quota draft" not in form

    kind = "nodes:default/V100M32/8"
    answer = client.post("/what-if/new/", {"trace": trace.public_id, "here": "0", kind: "+1"})
    assert answer.status_code == 302, answer.context["form"].errors
    asked = QuotaReplay.objects.get()
    assert (asked.trace, asked.replays, asked.on_own_fleet) == (trace, "Made", True)
    again = client.get("/what-if/new/", {"like": asked.public_id}).content.decode()
    assert 'value="+1"' in again and f'name="trace" value="{trace.public_id}"' in again


@pytest.mark.parametrize(
    ("sent", "field", "words"),
    [
        ({"files": []}, "files", "required"),
        ({"title": ""}, "title", "required"),
        ({"kind": "csv"}, "kind", "valid choice"),
        ({"nodes": "9x9x9"}, "nodes", "such as 6x4:v100"),
        ({"nodes": "2x8"}, "nodes", "A scenario names its nodes itself"),
        ({"limit": "0"}, "limit", "Enter 1 or more"),
        ({"files": b"\xff\xfe\x00"}, "files", "is not UTF-8"),
        ({"files": b"{"}, "files", "is not JSON"),
        ({"files": b"{}", "kind": "philly"}, "files", "few.json"),
        ({"files": b"\x89PNG\r\n"}, "files", "is not UTF-8"),
    ],
)
def test_a_page_tells_what_is_wrong_at_its_field(personas: Personas, client: Client, sent: dict[str, Any], field: str, words: str):
    client.force_login(personas.users["superuser"])
    chosen = {"title": "Few", "kind": "scenario", "files": made.document().encode()} | sent
    if isinstance(chosen["files"], bytes):
        chosen["files"] = upload(chosen["files"])
    answer = client.post(ADD, chosen)

    assert answer.status_code == 422
    assert words in " ".join(answer.context["form"].errors[field])
    assert not Trace.objects.exists()


def test_the_same_over_http(personas: Personas):
    client = personas.client("operator")
    nodes, pods = made.openb()
    files = [{"name": "nodes.csv", "text": nodes}, {"name": "pods.csv", "text": pods}]
    answer = client.post("/api/v1/traces", {"title": "Made", "kind": "openb", "files": files}, content_type="application/json")
    trace = answer.json()
    assert (answer.status_code, trace["jobs"], trace["left_out"]) == (201, 6, [{"why": "never started, so the run time is unknown", "rows": 1}])
    assert client.get(f"/api/v1/traces/{trace['id']}").json() == trace
    assert [row["title"] for row in client.get("/api/v1/traces").json()["items"]] == ["Made"]

    body = {"trace": trace["id"], "first_hours": 2, "policy": {"order": "fifo"}}
    asked = client.post("/api/v1/what-ifs", body, content_type="application/json")
    assert (asked.status_code, asked.json()["trace"], asked.json()["first_hours"]) == (201, trace["id"], 2)

    wrong = client.post("/api/v1/traces", {"title": "x", "kind": "openb", "files": files[1:]}, content_type="application/json")
    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (422, "nodes")
    assert client.delete(f"/api/v1/traces/{trace['id']}").status_code == 204
    assert personas.client("submitter").post("/api/v1/traces", body, content_type="application/json").status_code in (403, 422)


def test_a_form_asks_a_fixed_number_of_questions(personas: Personas, client: Client, django_assert_max_num_queries: Any):
    client.force_login(personas.users["superuser"])
    for number in range(3):
        add(personas, jobs=6 + number)
    with django_assert_max_num_queries(30):
        client.get("/what-if/new/")
    with django_assert_max_num_queries(12):
        client.get("/what-if/traces/")
