"""What the fleet does and what teams are promised, on the command line; and completion."""

import json
import re
import shutil
import subprocess
from datetime import timedelta

import pytest
from django.core.signals import request_started

from dashboards.gap.store import gap_turn
from dashboards.health.models import Incident
from gpufleet import cli
from gpufleet.client import fleet as fleet_command
from gpufleet.client import gap as gap_command
from gpufleet.client.completion import OF_JOBS, VALUES, WORDS, commands
from gpufleet.core.times import now
from quotas.models import ChargeLine, ChargeMonth, QuotaShare
from scheduler.models import Cluster, JobState, Node, PlannedHealth
from tests.builders import cluster, job, node, placement

pytestmark = pytest.mark.django_db(transaction=True)
TEAM = "acme/research/nlp"


@pytest.fixture
def busy(personas):
    sick = node("node-sick", gpus=2, health="draining")
    QuotaShare.objects.create(node=personas.nodes[TEAM], gpu_type="H100-SXM-80GB", guaranteed_milli=4000)
    held = job("held", on=personas.nodes[TEAM], state=JobState.RUNNING, gpus_milli=1000)
    placement(held, node("node-well", gpus=2).gpus.first())
    job("waits\x1b[31m", on=personas.nodes[TEAM], gpus_milli=8000)
    return sick


def test_the_fleet_by_type_and_its_sick_nodes(run, busy):
    status, out, _ = run("fleet")
    assert status == 0
    assert re.search(r"H100-SXM-80GB +4 ", out)
    assert json.loads(run("fleet", "--json")[1])["types"][0]["gpus"] == 4
    out = run("fleet", "--nodes", "sick")[1]
    assert "node-sick" in out and "draining" in out and "node-well" not in out
    assert {row["name"] for row in json.loads(run("fleet", "--nodes", "all", "--json")[1])["items"]} == {"node-sick", "node-well"}


def test_the_gap_and_the_gpus_behind_one_of_its_figures(run, busy):
    gap_turn(now=now())
    assert re.search(r"starting|idle", run("gap")[1])
    assert re.search(r"TEAM +GPUS +COMPUTING +IDLE +GAP AN HOUR +GAP: WEEK / BEFORE\n(?:.*\n)*nlp +1 +0 +0 +- +- / -", run("gap")[1])
    status, out, _ = run("gap", "rows", "--cause", "unread", "--cause", "starting", "--cause", "idle", "--team", "nlp", "--limit", "1")
    assert status == 0 and re.search(r"node-well +\d+ +H100-SXM-80GB +- +nlp +Batch +j-\S+ +1 ", out) and "1 counted GPU, - an hour." in out
    told = json.loads(run("gap", "rows", "--json")[1])
    assert told["gpu_milli"] == sum(row["gpu_milli"] for row in told["items"]) == 4000
    assert run("gap", "rows", "--class", "nothing")[0] == 5
    assert "gpufleet gap rows" in run("gap", "--team", "nlp")[2]


def test_rows_of_the_gap_are_those_of_one_snapshot_also_where_one_is_taken_meanwhile(run, busy, monkeypatch):
    """With pages of one row, a snapshot is taken before the second of them: the total is that of the rows."""
    monkeypatch.setattr(gap_command, "PAGE", 1)
    minutes = [now(), now() + timedelta(minutes=2)]
    gap_turn(now=minutes.pop(0))

    asked = []

    def taken(**said):
        asked.append(said)
        if len(asked) == 2:
            node("node-new", gpus=3)
            gap_turn(now=minutes.pop(0))

    request_started.connect(taken)
    try:
        told = json.loads(run("gap", "rows", "--json")[1])
    finally:
        request_started.disconnect(taken)
    assert told["gpu_milli"] == sum(row["gpu_milli"] for row in told["items"]) == 7000


def test_a_drain_is_previewed_and_done(run, busy):
    def drain(*words):
        return run("drain", *words, who="operator", scopes=("read", "operate"))

    status, _, fault = drain("node-well", "--jobs", "move", "--at", "2999-01-01T00:00:00Z", "--dry-run")
    assert status == 5 and "at most 366 days ahead" in fault
    status, out, _ = drain("node-well", "--jobs", "move", "--dry-run")
    assert status == 0 and re.search(r"held +.*moves", out)
    assert drain("node-well", "--jobs", "move")[0] == 2, "a reason is required"
    assert "Planned: node-well." in drain("node-well", "--begins", f"{now() + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}", "--reason", "new fans")[1]
    assert "Draining node-well: 1 asked to leave" in drain("node-well", "--jobs", "move", "--reason", "new fans")[1]
    assert drain("nowhere", "--reason", "new fans")[0] == 4
    twin = node("node-well", of=cluster("south"), gpus=1)
    status, _, fault = drain("node-well", "--dry-run")
    assert status == 2 and f"{twin.public_id} (south/node-well)" in fault and "(north/node-well)" in fault
    assert [one["id"] for one in json.loads(drain("south/node-well", "--dry-run", "--json")[1])["nodes"]] == [twin.public_id]
    named = node("n-99999", gpus=1)
    assert [one["id"] for one in json.loads(drain("n-99999", "--dry-run", "--json")[1])["nodes"]] == [named.public_id]
    assert [one["id"] for one in json.loads(drain(twin.public_id, "--dry-run", "--json")[1])["nodes"]] == [twin.public_id]


def test_nodes_are_marked_now_or_planned_and_plans_are_listed_and_called_off(run, busy):
    begins = f"{now() + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"

    def mark(*words):
        return run("mark", *words, who="operator", scopes=("read", "operate"))

    def planned(*words):
        return run("planned", *words, who="operator", scopes=("read", "operate"))

    assert mark("suspect", "node-well")[0] == 2, "a reason is required"
    assert re.fullmatch(r"n-\d+  suspect\n", mark("suspect", "node-well", "--reason", "odd noise")[1])
    status, out, _ = mark("down", "node-well", "node-sick", "--begins", begins, "--reason", "power work")
    assert status == 0 and len(re.findall(r"^n-\d+  \S.* down  hp-\d+$", out, re.M)) == 2
    status, _, fault = mark("burn-in", "node-well", "--reason", "odd noise")
    assert status == 5 and "From suspect it can become healthy, draining, down, not burn-in." in fault
    status, out, _ = planned("--nodes")
    assert status == 0 and re.search(r"hp-\d+ .* north/node-well +down +\S.* power work", out)
    plans = json.loads(planned("--nodes", "--json")[1])["items"]
    assert planned("--call-off", plans[0]["id"])[0] == 0
    assert [row["id"] for row in json.loads(planned("--nodes", "--json")[1])["items"]] == [plans[1]["id"]]
    assert planned("--call-off", "hp-999999")[0] == 4
    told = json.loads(mark("healthy", "node-well", "--reason", "quiet again", "--json")[1])["items"]
    assert [(one["health"], one["planned"]) for one in told] == [("healthy", None)]


def test_one_incident_is_one_and_not_several(run, busy):
    assert run("health", who="operator")[1].startswith("0 open incidents, 0 in 30 days.")

    Incident.objects.create(public_id="in-1", node=Node.objects.get(name="node-well"), opened_at=now(), title="Odd noise.")
    assert run("health", who="operator")[1].startswith("1 open incident, 1 in 30 days.")


def test_a_mark_is_shown_before_it_is_done(run, busy):
    def mark(*words):
        return run("mark", *words, who="operator", scopes=("read", "operate"))

    status, out, _ = mark("down", "node-well", "--dry-run")
    assert status == 0
    assert "2 GPUs of node-well are out of service at once." in out and "1 job loses its workers here." in out
    begins = f"{now() + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"
    assert "This is what it would do now." in mark("draining", "node-well", "--begins", begins, "--dry-run")[1]
    status, _, fault = mark("repairing", "node-well", "--dry-run")
    assert status == 5 and "From healthy it can become" in fault
    status, _, fault = mark("healthy", "node-sick", "--begins", "2026-01-01T00:00:00Z", "--dry-run")
    assert status == 5 and "begins" in fault
    assert json.loads(mark("down", "node-well", "--dry-run", "--json")[1])["items"][0]["health"] == "healthy"
    assert run("mark", "down", "node-well", "--dry-run", who="viewer")[0] == 3
    assert set(Node.objects.values_list("name", "health")) == {("node-well", "healthy"), ("node-sick", "draining")}
    assert not PlannedHealth.objects.exists()


def test_nodes_are_kept_as_spares_and_given_back(run, busy):
    def spare(*words):
        return run("spare", *words, who="operator", scopes=("read", "operate"))

    assert spare("node-well")[0] == 2, "a reason is required"
    assert re.fullmatch(r"n-\d+  spare\n", spare("node-well", "--reason", "replacement")[1])
    assert Node.objects.get(name="node-well").spare
    status, _, fault = spare("node-well", "--reason", "replacement")
    assert status == 5 and "node-well is already a spare." in fault
    assert json.loads(spare("node-well", "--back", "--reason", "needed", "--json")[1])["items"][0]["spare"] is False
    assert spare("nowhere", "--reason", "needed")[0] == 4
    assert run("spare", "node-well", "--reason", "x", who="viewer")[0] == 3


def test_boundaries_of_nodes_are_shown_and_stated(run, busy):
    def boundaries(*words):
        return run("boundaries", *words, who="operator", scopes=("read", "operate"))

    Cluster.objects.update(backend="slurm")
    assert boundaries("node-well", "--state", "cores")[0] == boundaries("node-well", "--reason", "why")[0] == 2
    assert re.fullmatch(r"n-\d+  none\n", boundaries("node-well")[1])
    assert re.fullmatch(r"n-\d+  cores \(operator\)\n", boundaries("node-well", "--state", "cores", "--reason", "Checked.")[1])
    assert json.loads(boundaries("node-well", "--json")[1])["items"][0]["boundaries"] == {"cores": "operator"}
    assert boundaries("node-well", "--none", "--reason", "The pinning is off.")[1].endswith("  none\n")
    assert boundaries("nowhere")[0] == 4
    assert run("boundaries", "node-well", "--none", "--reason", "x", who="viewer")[0] == 3


def test_jobs_of_a_cluster_that_is_gone_are_previewed_and_given_up(run, busy):
    def give_up(*words):
        return run("abandon", "north", *words, who="operator", scopes=("read", "operate"))

    said = ("--reason", "It burned down.", "--confirm", "north")
    status, _, fault = give_up(*said)
    assert status == 5 and "north answers" in fault
    Cluster.objects.update(silent_since=now() - timedelta(hours=1))
    assert give_up("--confirm", "north")[0] == give_up("--reason", "It burned down.")[0] == 2
    status, out, _ = give_up("--dry-run")
    assert status == 0 and re.search(r"held +.* not queued again", out) and "0 of 1 jobs would be queued again." in out
    assert "0 of 1 jobs are queued again." in give_up(*said)[1]
    assert "No job that you may see runs there." in give_up("--dry-run")[1]


def test_the_tree_with_what_is_promised_and_held(run, busy):
    status, out, _ = run("quota", TEAM)

    assert status == 0
    (line,) = [line for line in out.splitlines() if line.startswith(TEAM)]
    assert re.search(r"H100-SXM-80GB +4 +- +1 +#####\.{15}$", line)
    assert {row["path"] for row in json.loads(run("quota", TEAM, "--json")[1])["items"]} == {TEAM}
    assert run("quota", "acme/nowhere")[0] == 4
    assert run("quota", TEAM, "--paths")[1] == f"{TEAM}\n"


def test_top_once_where_there_is_no_terminal(run, busy):
    status, out, _ = run("top")

    assert status == 0
    assert out.index("held") < out.index("waits")
    assert "\x1b" not in out, "neither colours nor what others wrote reach a terminal as commands"
    assert {job["name"] for job in json.loads(run("top", "--json")[1])["holding"]} == {"held"}
    assert run("top", "-n", "0")[0] == 2
    assert "WAITING: no job\n" in run("top", "--team", "acme/product")[1]


def test_top_on_a_terminal_goes_on_until_it_is_told_to_stop(run, busy, monkeypatch):
    shown = []

    def pause(_):
        shown.append(1)
        if len(shown) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(fleet_command, "is_terminal", lambda: True)
    monkeypatch.setattr(fleet_command.time, "sleep", pause)

    status, out, _ = run("top")

    assert status == 130
    assert out.count(fleet_command.CLEAR) == 2


def test_costs_of_a_month_that_may_not_be_seen_are_refused_in_one_line(run, personas):
    status, out, err = run("chargeback", "--month", "2026-02", who="submitter", scopes=("submit",))

    assert (status, out) == (3, "")
    # The server runs in this process, too, and may log the refusal before it.
    assert err.splitlines()[-1].startswith("You may not do this.") and "gpufleet/client/" not in err


def test_a_month_is_held_against_an_invoice(run, personas):
    month = ChargeMonth.objects.create(first="2026-02-01", currency="USD")
    line = {
        "day": "2026-02-03",
        "job": "j-1",
        "quota": personas.nodes[TEAM],
        "quota_path": TEAM,
        "gpu_type": "H100",
        "card": "rc-1",
        "preemptible": False,
    }
    prices = {"list_micros": 3_000_000, "contracted_micros": 2_000_000, "list_nanos": 3 * 10**9, "contracted_nanos": 2 * 10**9}
    ChargeLine.objects.create(month=month, milli_millis=3_600_000_000, effective_nanos=2 * 10**9, **line, **prices)
    asked = ("chargeback", "--month", "2026-02", "--reconcile", "2.10", "--reference", "INV-1")

    status, out, _ = run(*asked, "--unit-price", "H100=2.05", "--fees", "0.05", who="finance", scopes=("admin",))
    assert status == 0
    assert re.search(r"Unit price against rate card +H100 +0\.05 +Invoice 2\.0500", out) and re.search(r"Not explained +0\.00\n", out)
    assert "is not a number" in run(*asked, "--fees", "some", who="finance", scopes=("admin",))[2]

    part = ("chargeback", "--from", "2026-02-03", "--to", "2026-03-02", "--format", "summary")
    status, out, _ = run(*part, who="finance", scopes=("read",))
    assert status == 0 and f"{TEAM},1,0,3,2,2,0,unknown,USD" in out
    assert "--from and --to are required" in run(*part[:3], who="finance")[2]


def test_ids_alone_for_programs(run, busy):
    assert re.fullmatch(r"(j-\d+\n){2}", run("ls", "--ids")[1])


def test_completion_knows_every_kind_of_bench():
    kinds = {name.removeprefix("bench ") for name in cli.PLAIN_COMMANDS if name.startswith("bench ")}

    assert kinds == {word for word in WORDS["bench"].split() if not word.startswith("--")}


def test_completion_knows_every_command_and_only_options_that_there_are(capsys):
    assert set(WORDS) | set(OF_JOBS) <= set(commands())
    for name, words in WORDS.items():
        if name in ("bench", "plan", "completion"):
            continue
        verbs = [word for word in words.split() if not word.startswith("-")]
        for inner in [[], *([verb] for verb in verbs)]:
            with pytest.raises(SystemExit) as ended:
                cli.main(["gpufleet", name, *inner, "--help"])
            assert ended.value.code == 0
        told = capsys.readouterr().out
        assert [word for word in words.split() if word not in told] == []
        for follows, values in ((key.split()[1], values) for key, values in VALUES.items() if key.split()[0] == name):
            assert follows in words.split()
            if (name, follows) not in ANY_TEXT:
                assert f"{{{','.join(values.split())}}}" in "".join(told.split())


# What the console checks, not the program: it takes any text.
ANY_TEXT = {("ls", "--state"), ("submit", "--preemptible")}


def test_completion_knows_every_state_of_a_job():
    assert VALUES["ls --state"].split() == JobState.values


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_the_shell_takes(capsys, shell):
    assert cli.main(["gpufleet", "completion", shell]) == 0
    script = capsys.readouterr().out
    if shell == "bash" and shutil.which("bash"):
        asked = f'{script}\nGPUFLEET_NO_JOBS=1; COMP_WORDS=(gpufleet qu); COMP_CWORD=1; _gpufleet; echo "${{COMPREPLY[@]}}"'
        asked += '\nCOMP_WORDS=(gpufleet fleet --n); COMP_CWORD=2; _gpufleet; echo "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("queue quota\n--nodes\n", "")
        for words, wanted in {
            ("submit", "--class", "b"): "batch",  # and no file that begins so
            ("ls", "--state", "ch"): "checkpointing",
            ("schedule", "ls", "--state", ""): "active paused ended",
            ("help", "su"): "submit",
        }.items():
            asked = f'{script}\nGPUFLEET_NO_JOBS=1; COMP_WORDS=(gpufleet "$@"); COMP_CWORD=$#; _gpufleet; echo "${{COMPREPLY[@]}}"'
            done = subprocess.run(["bash", "-c", asked, "bash", *words], capture_output=True, text=True)
            assert (done.stdout, done.stderr) == (f"{wanted}\n", "")
    assert cli.main(["gpufleet", "completion", "tcsh"]) == 2
