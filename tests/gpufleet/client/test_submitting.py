"""Submitting, following and ending jobs from the command line."""

import json
import re
from datetime import timedelta

import pytest

from gpufleet.client import AWAY, ClientError
from gpufleet.client.calls import Console
from gpufleet.client.description import seconds
from gpufleet.client.place import place_now
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.backends.registry import backend_for
from scheduler.models import Job, JobState, PlannedJobChange, SavedView
from scheduler.services.jobs.jobs import job_hold
from scheduler.services.loop.tick import tick_run
from tests.builders import NOON, cluster, gpu_type, job, node, rate

pytestmark = pytest.mark.django_db(transaction=True)
TEAM = "acme/research/nlp"
SUBMIT = {"who": "submitter", "scopes": ("submit",)}
FILE = f"""
name: train
quota: {TEAM}
gpus: 1
launch: {{command: [python, train.py]}}
---
name: second
quota: {TEAM}
gpus: 2
"""


@pytest.fixture(autouse=True)
def fleet(db):
    node(gpus=4)


def only_job() -> Job:
    return Job.objects.get()


def test_a_file_of_two_documents_is_two_jobs(run, tmp_path):
    (tmp_path / "jobs.yaml").write_text(FILE)

    status, out, _ = run("submit", str(tmp_path / "jobs.yaml"), **SUBMIT)

    assert status == 0
    assert [found.name for found in Job.objects.order_by("id")] == ["train", "second"]
    assert all(found.public_id in out for found in Job.objects.all())


def test_flags_describe_a_job_or_change_the_files(run, tmp_path):
    first = job("before", on=Job._meta.get_field("quota").related_model.objects.get(path=TEAM))
    words = ["--name", "sweep", "--quota", TEAM, "--gpus", "2", "--workers", "3", "--type", "H100-SXM-80GB", "--class", "interactive"]
    words += ["--limit", "2h", "--label", "run=7", "--env", "A=b=c", "--workdir", "/data", "--image", "r.io/a:1", "--after", first.public_id]

    assert run("submit", *words, "--json", "--", "python", "train.py", "--lr", "3", **SUBMIT)[0] == 0

    made = Job.objects.exclude(pk=first.pk).get()
    assert (made.name, made.job_class, made.gpus_milli, made.limit_seconds, made.labels) == ("sweep", "interactive", 6000, 7200, {"run": "7"})
    assert made.launch == {"command": ["python", "train.py", "--lr", "3"], "env": {"A": "b=c"}, "image": "r.io/a:1", "workdir": "/data"}
    assert made.dependencies.get().on == first
    (tmp_path / "job.yaml").write_text(f"name: train\nquota: {TEAM}\ngpus: 1\n")
    assert run("submit", str(tmp_path / "job.yaml"), "--workers", "1-4", "--priority", "70", **SUBMIT)[0] == 0
    elastic = Job.objects.latest("id")
    assert (elastic.priority, elastic.spec["roles"][0]["min"], elastic.spec["roles"][0]["max"]) == (70, 1, 4)


@pytest.fixture
def elastic(personas):
    roles = [{"name": "worker", "min": 2, "max": 4, "gpus": 1}]
    more = {"spec": {"roles": roles, "grace_s": 30}, "gpus_milli": 2000, "labels": {"run": "1"}, "limit_seconds": 60}
    return job("mine", on=personas.nodes[TEAM], owner=personas.users["submitter"], **more)


def test_a_job_is_changed_in_what_is_named(run, elastic):
    words = ["--priority", "80", "--estimate", "4h", "--limit", "none", "--label", "kind=b", "--workers", "worker=1-8", "--reason", "Later."]

    status, out, err = run("change", elastic.public_id, *words, **SUBMIT)

    assert (status, out, err) == (0, f"{elastic.public_id}  queued  changed\n", "")
    made = only_job()
    assert (made.name, made.priority, made.estimate_seconds, made.limit_seconds) == ("mine", 80, 14_400, None)
    assert made.labels == {"run": "1", "kind": "b"}
    assert (made.spec["roles"][0]["min"], made.spec["roles"][0]["max"]) == (1, 8)
    assert AuditEntry.objects.get(action="job.edit").reason == "Later."
    assert json.loads(run("change", elastic.public_id, "--name", "ours", "--json", **SUBMIT)[1])["name"] == "ours"


def test_a_change_is_previewed_with_its_price(run, personas, elastic):
    """Two to four GPUs at $2.50 an hour, ended after a minute, become up to eight GPUs for two hours."""
    node(gpus=8)
    rate("H100-SXM-80GB", since=NOON, micros=2_500_000)
    words = ["change", elastic.public_id, "--workers", "worker=2-8", "--limit", "2h", "--dry-run"]
    lead = {"who": "team_lead", "scopes": ("read", "submit")}

    status, out, err = run(*words, **lead)

    assert status == 0, err
    assert "It costs $5.00 to $20.00 an hour at the guaranteed rate; before, $5.00 to $10.00." in out
    assert "It costs at most $40.00 until its time limit, $39.83 more than before." in out
    price = json.loads(run(*words, "--json", **lead)[1])["price"]
    assert price == {"least_per_hour": [5_000_000] * 2, "most_per_hour": [10_000_000, 20_000_000], "until_limit": [166_667, 40_000_000]}
    assert only_job().revision == elastic.revision, "nothing is written"


def test_a_job_is_changed_only_as_it_was_read(run, elastic, monkeypatch):
    get = Console.get

    def somebody_is_faster(self, path, **query):
        told = get(self, path, **query)
        job_hold(job=elastic, now=now())
        return told

    monkeypatch.setattr(Console, "get", somebody_is_faster)

    status, out, err = run("change", elastic.public_id, "--priority", "80", **SUBMIT)

    assert (status, out, only_job().priority) == (5, "", 50)
    assert "changed" in err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 2, "Say what is to be changed."),
        (("--reason", "No."), 2, "Say what is to be changed."),
        (("--limit", "soon"), 2, "is not a duration"),
        (("--workers", "2-8"), 2, "--workers 2-8: write ROLE=COUNT, such as worker=4 or worker=2-8."),
        (("--workers", "other=2"), 5, "workers"),
        (("--priority", "5000"), 5, "priority:"),
        (("--deadline", "tomorrow"), 5, "deadline:"),
    ],
)
def test_a_change_that_is_wrong_is_told_and_nothing_is_written(run, elastic, words, status, said):
    ended, _, err = run("change", elastic.public_id, *words, **SUBMIT)

    assert (ended, said in err) == (status, True), err
    elastic.refresh_from_db()
    assert elastic.revision == Job.objects.get().revision == 1


def test_whether_it_may_be_deferred_is_a_flag(run):
    deadline = f"{now() + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
    words = ["--name", "mine", "--quota", TEAM, "--gpus", "1", "--deadline", deadline, "--defer", "carbon"]
    status, _, err = run("submit", *words, "--", "true", **SUBMIT)
    assert (status, "estimate_s" in err) == (5, True), err

    assert run("submit", *words, "--estimate", "2h", "--", "true", **SUBMIT)[0] == 0
    made = only_job()
    assert (made.defer, made.deferral["why"]) == ("carbon", "no_rate")
    status, out, _ = run("show", made.public_id, **SUBMIT)
    assert "no rate of energy is known" in out
    assert run("change", made.public_id, "--defer", "none", **SUBMIT)[0] == 0
    made.refresh_from_db()
    assert made.defer is None


def test_templates_times_secrets_and_whether_it_may_be_put_out_are_flags(run, tmp_path):
    due = now().replace(microsecond=0) + timedelta(days=1)
    words = ["--template", "notebook", "--name", "mine", "--quota", TEAM, "--preemptible", "false", "--secret", "TOKEN=hub", "--secret", "KEY=store"]
    words += ["--not-before", f"{due:%Y-%m-%dT%H:%M:%SZ}", "--deadline", f"{due + timedelta(hours=3):%Y-%m-%dT%H:%M:%S}+01:00"]

    status, _, err = run("submit", *words, "--", "jupyter", "lab", **SUBMIT)

    assert (status, err) == (0, "")
    made = only_job()
    assert (made.job_class, made.preemptible) == ("interactive", "no"), "as the template has it, and as the flag has it"
    assert (made.not_before, made.deadline) == (due, due + timedelta(hours=2))
    assert made.launch["secrets"] == {"TOKEN": "hub", "KEY": "store"}
    assert run("submit", "--template", "notebook", "--quota", TEAM, **SUBMIT)[0] == 0
    assert Job.objects.latest("id").name == "notebook", "a template may say the name, too"
    (tmp_path / "job.yaml").write_text(
        f"name: x\nquota: {TEAM}\ngpus: 1\npreemptible: false\nlaunch: {{command: [a], secrets: {{TOKEN: old, MORE: other}}}}\n"
    )
    assert run("submit", str(tmp_path / "job.yaml"), "--preemptible", "when_borrowed", "--secret", "TOKEN=hub", **SUBMIT)[0] == 0
    changed = Job.objects.latest("id")
    assert (changed.preemptible, changed.launch["secrets"]) == ("when_borrowed", {"TOKEN": "hub", "MORE": "other"})


@pytest.mark.parametrize(
    "words", [("--preemptible", "perhaps"), ("--deadline", "tomorrow"), ("--not-before", "2030-01-01T09:00:00"), ("--template", "none")]
)
def test_what_a_flag_says_wrongly_is_told_at_its_key_by_the_console(run, words):
    status, _, err = run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", *words, **SUBMIT)

    assert status == 5
    assert f"{words[0].removeprefix('--').replace('-', '_')}:" in err


def test_a_draft_is_kept_and_put_in_the_queue_later(run):
    assert run("submit", "--name", "later", "--quota", TEAM, "--gpus", "1", "--draft", **SUBMIT)[0] == 0
    draft = only_job()
    assert draft.state == "draft"

    status, out, _ = run("enqueue", draft.public_id, **SUBMIT)

    assert (status, only_job().state) == (0, "queued")
    assert f"{draft.public_id}  queued  submitted" in out
    status, _, err = run("enqueue", draft.public_id, **SUBMIT)
    assert status == 5 and "is not a draft" in err


def test_times_and_dates_in_a_file_need_no_quotes(run, tmp_path):
    due = now().replace(microsecond=0) + timedelta(days=1)
    (tmp_path / "job.yaml").write_text(f"""
name: nightly
quota: {TEAM}
gpus: 1
not_before: {due:%Y-%m-%dT%H:%M:%SZ}
deadline: {due + timedelta(hours=3):%Y-%m-%d %H:%M:%S}+01:00
labels: {{day: 2026-11-20}}
""")

    status, _, err = run("submit", str(tmp_path / "job.yaml"), **SUBMIT)

    assert (status, err) == (0, "")
    assert (only_job().not_before, only_job().deadline) == (due, due + timedelta(hours=2))
    assert only_job().labels == {"day": "2026-11-20"}
    (tmp_path / "job.yaml").write_text(f"name: x\nquota: {TEAM}\ngpus: 1\ndeadline: 2030-01-01 09:00:00\n")
    status, _, err = run("submit", str(tmp_path / "job.yaml"), **SUBMIT)
    assert status == 5
    assert "deadline:" in err


def test_faults_are_told_at_their_fields_and_nothing_is_submitted(run, tmp_path):
    (tmp_path / "job.yaml").write_text(f"name: train\nquota: {TEAM}\ngpus: 1\ncolour: red\npriority: loud\n")

    status, _, err = run("submit", str(tmp_path / "job.yaml"), **SUBMIT)

    assert status == 5
    assert "colour:" in err and "priority:" in err
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not valid YAML at line 1"),
        ("- 1", "not keys with values"),
        ("", "describes no job"),
        ("!!python/object:os.system {}", "is not valid YAML"),
    ],
)
def test_what_is_no_description_is_said_without_asking_the_console(run, tmp_path, text, said):
    (tmp_path / "job.yaml").write_text(text)

    status, _, err = run("submit", str(tmp_path / "job.yaml"), **SUBMIT)

    assert status == 2
    assert said in err
    assert run("submit", str(tmp_path / "absent.yaml"), **SUBMIT)[0] == 2
    assert run("submit", **SUBMIT)[0] == 2


@pytest.mark.parametrize("text", ["name: a\nquota: q\nname: b\n", "launch:\n  env:\n    A: x\n\n    A: y\n", '{"gpus": 1,\n\n"gpus": 2}'])
def test_what_is_stated_twice_is_refused_with_its_line(run, tmp_path, text):
    """The second would win, and nobody be told."""
    (tmp_path / "job.yaml").write_text(text)
    status, _, err = run("submit", str(tmp_path / "job.yaml"), **SUBMIT)

    line = len(text.rstrip("\n").splitlines())
    assert (status, f"job.yaml at line {line}, column " in err, "is stated twice." in err) == (2, True, True), err
    assert not Job.objects.exists()


def test_a_job_is_written_as_a_file_that_submits_it_again(run, tmp_path, personas):
    words = ["--name", "first", "--quota", TEAM, "--gpus", "2", "--workers", "1-2", "--limit", "2h", "--label", "run=ü", "--", "sh", "-c", "a\nb"]
    assert run("submit", *words, **SUBMIT)[0] == 0
    first = only_job()
    status, text, _ = run("show", first.public_id, "--yaml", **SUBMIT)
    (tmp_path / "again.yaml").write_text(text)

    assert status == 0 and text.startswith("name: first\n")
    assert run("submit", str(tmp_path / "again.yaml"), **SUBMIT)[0] == 0
    again = Job.objects.exclude(pk=first.pk).get()
    for column in ("name", "spec", "launch", "labels", "limit_seconds", "quota_id", "gpus_milli"):
        assert getattr(again, column) == getattr(first, column)
    assert run("show", first.public_id, "--yaml", "--json", **SUBMIT)[0] == 2
    assert run("show", first.public_id, "--yaml", who="viewer", scopes=("read",))[0] == 3
    told = run("show", first.public_id, **SUBMIT)[1]
    assert "Limit       2 h" in told and "Labels      run=ü" in told


def test_a_dry_run_submits_nothing(run):
    status, out, _ = run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", "--dry-run", **SUBMIT)

    assert (status, out) == (0, "Valid: would submit 1 job of 1 GPU.\n")
    assert not Job.objects.exists()


def test_an_answer_that_is_lost_makes_no_second_job(run, lose):
    """The client asks again with the same key."""
    asked = lose(lambda number: number < 3)

    assert run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", **SUBMIT)[0] == 0
    assert asked == ["/jobs"] * 3
    assert Job.objects.count() == 1


def test_a_file_with_a_bad_document_submits_the_others_and_names_it(run, tmp_path):
    (tmp_path / "jobs.yaml").write_text(f"{FILE}---\nname: third\nquota: {TEAM}\ngpus: 1\ncolour: red\n")

    status, out, err = run("submit", str(tmp_path / "jobs.yaml"), **SUBMIT)

    assert status == 5
    assert out.count("queued") == 2 and Job.objects.count() == 2
    assert "Document 3 was refused" in err and "colour:" in err
    status, out, err = run("submit", str(tmp_path / "jobs.yaml"), "--dry-run", **SUBMIT)
    assert (status, out.count("Valid:")) == (5, 2)
    assert Job.objects.count() == 2


def test_many_documents_are_few_requests_that_are_safe_to_repeat(run, tmp_path, monkeypatch, lose):
    monkeypatch.setattr("gpufleet.client.commands.MOST_IN_A_BATCH", 4)
    asked = lose(lambda number: number % 2)
    (tmp_path / "jobs.yaml").write_text("---".join(f"\nname: job-{number}\nquota: {TEAM}\ngpus: 1\n" for number in range(10)))

    status, out, _ = run("submit", str(tmp_path / "jobs.yaml"), "--key", "sweep", "--json", **SUBMIT)

    assert status == 0
    assert asked == ["/submissions"] * 6
    assert [job["name"] for job in json.loads(out)["jobs"]] == [f"job-{number}" for number in range(10)]
    assert Job.objects.count() == 10
    assert run("submit", str(tmp_path / "jobs.yaml"), "--key", "sweep", **SUBMIT)[0] == 0
    assert Job.objects.count() == 10


def test_what_fits_within_a_minute_is_sent_again_and_what_does_not_is_refused(run, settings, monkeypatch):
    settings.SUBMITS_PER_MINUTE, pauses = 2, []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        settings.SUBMITS_PER_MINUTE = 1000

    monkeypatch.setattr("gpufleet.client.commands.console_meant", lambda: Console(place_now(), pause=pause))
    described = ("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", "--array")
    assert run(*described, "20", **SUBMIT)[0] == 0

    status, _, err = run(*described, "19", **SUBMIT)
    assert (status, pauses) == (5, [])
    assert "Too many requests" in err and "submitter may submit 2 jobs a minute; this array of 19 fits at" in err
    assert run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", **SUBMIT)[0] == 0
    assert len(pauses) == 1 and 20 < pauses[0] <= 30
    assert Job.objects.count() == 21


def test_a_job_is_followed_to_its_end(run, monkeypatch):
    """Submitted, started by the loop on the simulated back-end, its log printed as it grows, and waited for."""
    home, moment = cluster(), [now()]
    backends = {home.pk: backend_for(home)}

    def step(seconds: float = 5) -> None:
        moment[0] += timedelta(seconds=seconds)
        tick_run(holder="test", now=moment[0], backends=backends)

    status, _, _ = run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", **SUBMIT)
    assert status == 0
    name = only_job().public_id
    step()
    assert only_job().state == JobState.STARTING
    for module in ("commands", "logs"):
        monkeypatch.setattr(f"gpufleet.client.{module}.console_meant", lambda: Console(place_now(), pause=lambda _: step(200)))
    assert "Not submitted" not in run("why", name, **SUBMIT)[1]

    status, out, _ = run("logs", name, "-f", **SUBMIT)
    assert status == 0
    assert out
    for _ in range(60):
        if only_job().state == JobState.COMPLETED:
            break
        step(600)
    assert only_job().state == JobState.COMPLETED
    assert run("show", name, **SUBMIT)[1].count("Attempt 1: completed") == 1


def test_several_jobs_are_cancelled_and_one_that_has_gone_is_said(run, personas):
    team = personas.nodes[TEAM]
    mine = [job(f"train-{number}", on=team, owner=personas.users["submitter"]) for number in range(2)]

    status, out, err = run("cancel", mine[0].public_id, "j-999999", mine[1].public_id, "--reason", "Wrong.", **SUBMIT)

    assert status == 4
    assert out.count("cancelled") == 2
    assert "j-999999" in err
    assert {found.state for found in Job.objects.all()} == {JobState.CANCELLED}
    assert run("cancel", mine[0].public_id, **SUBMIT)[0] == 5


def test_holding_and_letting_go(run, personas):
    mine = job(on=personas.nodes[TEAM], owner=personas.users["submitter"])

    assert run("hold", mine.public_id, **SUBMIT)[0] == 0
    assert only_job().held_at is not None
    assert run("release", mine.public_id, "--json", **SUBMIT)[0] == 0
    assert only_job().held_at is None


def test_a_hold_is_planned_listed_and_called_off(run, personas):
    mine, other = (job(name, on=personas.nodes[TEAM], owner=personas.users["submitter"]) for name in ("mine", "other"))
    begins = f"{now() + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"

    status, out, err = run("hold", mine.public_id, other.public_id, "j-999999", "--begins", begins, "--reason", "night", **SUBMIT)
    assert status == 4 and "j-999999" in err and re.match(r"Planned pc-\d+: 2 jobs, 20", out), (out, err)
    assert not Job.objects.filter(held_at__isnull=False).exists()
    name = PlannedJobChange.objects.get().public_id
    status, out, _ = run("planned", **SUBMIT)
    assert status == 0 and re.search(rf"{name} +20\S+ \S+ UTC +hold +{mine.public_id} {other.public_id} +submitter +night", out), out
    assert "again then" in run("hold", mine.public_id, "--begins", begins, "--dry-run", **SUBMIT)[1]

    assert run("planned", "--call-off", name, "--job", mine.public_id, **SUBMIT)[:2] == (0, f"{name}  called off\n")
    assert mine.public_id not in run("planned", **SUBMIT)[1]
    assert run("planned", "--call-off", name, **SUBMIT)[0] == 0
    assert run("planned", **SUBMIT)[1] == "No change is planned.\n"
    assert run("planned", "--call-off", name, **SUBMIT)[0] == 4


def test_waiting_ends_as_the_job_does(run, personas, monkeypatch):
    calls = []

    def ends(_):
        calls.append(1)
        Job.objects.update(state=JobState.FAILED, ended_at=now())

    monkeypatch.setattr("gpufleet.client.commands.time.sleep", ends)

    status, out, err = run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", "--wait", "--json", **SUBMIT)

    assert status == 1
    assert json.loads(out)["jobs"][0]["name"] == "x"
    assert "queued" in err and "failed" in err
    assert calls == [1]


def test_a_console_that_restarts_does_not_end_the_wait_for_a_job(run, monkeypatch):
    asked, slept = [], []
    get = Console.get

    def away(console, path, **query):
        asked.append(path)
        if path.startswith("/jobs/") and len(asked) in (2, 3):
            raise ClientError(AWAY, "It does not answer.")
        return get(console, path, **query)

    def ends(seconds):
        slept.append(seconds)
        Job.objects.update(state=JobState.COMPLETED, ended_at=now())

    monkeypatch.setattr(Console, "get", away)
    monkeypatch.setattr("gpufleet.client.commands.time.sleep", ends)

    status, _, err = run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", "--wait", **SUBMIT)
    assert (status, err.count("It does not answer. Retrying."), slept) == (0, 2, [1.0, 10.0, 10.0]), err

    asked.clear()
    Job.objects.update(state=JobState.QUEUED, ended_at=None)
    monkeypatch.setattr("gpufleet.client.commands.AWAY_SECONDS", -1.0)
    assert run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", "--wait", **SUBMIT)[0] == 6, "not for ever"


def test_what_is_waited_for_is_coloured_only_where_it_is_read(run, monkeypatch):
    """`gpufleet submit --wait 2>file` at a terminal: no escapes in the file, and a line for each change, however often it looks."""
    looks = []

    def ends_at_the_third_look(_):
        looks.append(1)
        if len(looks) == 3:
            Job.objects.update(state=JobState.COMPLETED, ended_at=now())

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("gpufleet.client.commands.time.sleep", ends_at_the_third_look)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)

    status, out, err = run("submit", "--name", "x", "--quota", TEAM, "--gpus", "1", "--wait", **SUBMIT)

    assert (status, len(looks)) == (0, 3)
    assert "\x1b[2mqueued" in out
    assert "\x1b" not in err
    assert [line.split()[1] for line in err.splitlines()] == ["queued", "completed"]


@pytest.mark.parametrize(("text", "length"), [("90", 90), ("90m", 5400), ("1.5h", 5400), ("2d", 172_800), ("3 min", 180)])
def test_lengths_of_time(text, length):
    assert seconds(text) == length


def test_many_jobs_are_looked_at_before_they_are_steered(run, personas):
    team = personas.nodes[TEAM]
    mine = [job(f"train-{number}", on=team, owner=personas.users["submitter"]) for number in range(2)]
    others = job("others", on=team)

    status, out, err = run("hold", mine[0].public_id, others.public_id, "--dry-run", **SUBMIT)
    assert status == 3
    assert "1 of 2 would change." in out and "not_allowed" in out and "1 job is left alone." in out
    looked = json.loads(run("hold", mine[0].public_id, "--dry-run", "--json", **SUBMIT)[1])
    assert looked["previews"][0]["notified"] == 0 and looked["previews"][0]["sentences"]
    assert others.public_id in err
    assert not Job.objects.filter(held_at__isnull=False).exists()

    assert run("priority", "80", *(one.public_id for one in mine), **SUBMIT)[0] == 0
    assert list(Job.objects.order_by("id").values_list("priority", flat=True)) == [80, 80, 50]
    told = json.loads(run("priority", "-5", mine[0].public_id, "--json", **SUBMIT)[1])
    assert told["jobs"][0]["effect"] == "changes" and len(told["batches"]) == 1


def test_all_that_match_are_steered_only_when_it_is_said_twice(run, personas, monkeypatch):
    team = personas.nodes[TEAM]
    for number in range(3):
        job(f"train-{number}", on=team, owner=personas.users["submitter"])
    meant = ("--matching", "phase=waiting", "--matching", f"team={TEAM}")

    assert run("cancel", **SUBMIT)[0] == 2
    assert run("cancel", "j-1", *meant, **SUBMIT)[0] == 2
    assert run("cancel", "--matching", "waiting", **SUBMIT)[0] == 2
    status, _, err = run("cancel", *meant, **SUBMIT)
    assert (status, Job.objects.filter(state=JobState.QUEUED).count()) == (2, 3)
    assert "--yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    status, out, _ = run("cancel", *meant, **SUBMIT)
    assert (status, Job.objects.filter(state=JobState.QUEUED).count()) == (0, 3)
    assert "3 of 3 would change." in out

    assert run("cancel", *meant, "--yes", **SUBMIT)[0] == 0
    assert Job.objects.filter(state=JobState.CANCELLED).count() == 3


def test_only_what_the_preview_showed_is_steered_and_as_it_was_shown(run, personas, monkeypatch):
    team, submitter = personas.nodes[TEAM], personas.users["submitter"]
    stays, changes = (job(f"train-{number}", on=team, owner=submitter) for number in range(2))
    others = job("others", on=team)

    def read_slowly(_: str) -> str:
        job("late", on=team, owner=submitter)
        job_hold(job=changes, now=now())
        return "y"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", read_slowly)
    status, out, err = run("cancel", "--matching", "phase=waiting", **SUBMIT)

    assert list(Job.objects.filter(state=JobState.CANCELLED)) == [stays]
    assert "2 of 3 would change." in out
    assert status != 0
    assert f"{changes.public_id}: It has changed" in err and f"{others.public_id}: Only the owner" in err


def test_who_would_change_nothing_is_not_asked(run, personas, monkeypatch):
    others = job("others", on=personas.nodes[TEAM])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("There is nothing to agree to."))

    status, out, err = run("cancel", "--matching", "phase=waiting", **SUBMIT)

    assert (status, Job.objects.get().state) == (3, JobState.QUEUED)
    assert "0 of 1 would change." in out and others.public_id in err


def test_what_is_planned_for_all_that_match_concerns_those_too_that_would_not_change_now(run, personas, monkeypatch):
    team, submitter = personas.nodes[TEAM], personas.users["submitter"]
    held, free = (job(name, on=team, owner=submitter) for name in ("held", "free"))
    others = job("others", on=team)
    job_hold(job=held, now=now())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "y")
    begins = f"{now() + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"

    status, out, err = run("release", "--matching", "phase=waiting", "--begins", begins, **SUBMIT)

    assert status == 3 and f"{others.public_id}: Only the owner" in err, (out, err)
    assert "1 job would not change now and is part of it all the same." in out
    assert list(PlannedJobChange.objects.get().jobs.order_by("pk")) == [held, free]


def test_a_saved_view_is_listed_by_its_name(run, personas):
    team = personas.nodes[TEAM]
    job("first", on=team), job("second", on=team, state=JobState.COMPLETED)
    SavedView.objects.create(public_id="v-1", owner=personas.users["viewer"], name="Over", query="phase=ended&size=25")

    assert "second" in run("ls", "--view", "over")[1]
    assert "first" not in run("ls", "--view", "over")[1]
    status, _, err = run("ls", "--view", "none")
    assert status == 4
    assert "There are: Over." in err


def test_speeds_by_type_are_stated_as_flags(run, tmp_path):
    gpu_type("A100-SXM-40GB", board="A100-40", memory_mib=40_960)
    (tmp_path / "job.yaml").write_text(f"name: x\nquota: {TEAM}\ngpus: 1\nthroughput: {{H100-SXM-80GB: 2}}\n")

    assert run("submit", str(tmp_path / "job.yaml"), "--speed", "A100-SXM-40GB=0.45", **SUBMIT)[0] == 0
    assert only_job().spec["throughput"] == {"H100-SXM-80GB": 2, "A100-SXM-40GB": 0.45}
    assert run("submit", str(tmp_path / "job.yaml"), "--speed", "A100-SXM-40GB=fast", **SUBMIT)[0] == 2


def test_a_sweep_is_said_by_its_lists(run):
    said = ("submit", "--name", "s", "--quota", TEAM, "--gpus", "1", "--param", "LR=0.1,0.01", "--param", "SEED=1,2")

    status, out, err = run(*said, "--dry-run", **SUBMIT)
    assert (status, out) == (0, "Valid: would submit 4 jobs of 4 GPUs.\n"), err
    assert run(*said, "--zip", **SUBMIT)[0] == 0
    assert [job.parameters for job in Job.objects.order_by("array_index")] == [{"LR": "0.1", "SEED": "1"}, {"LR": "0.01", "SEED": "2"}]
    last = Job.objects.order_by("-array_index")[0]
    assert "Parameters  LR=0.01 SEED=2" in run("show", last.public_id, who="submitter", scopes=("read", "submit"))[1]
    assert run(*said, "--array", "3", **SUBMIT)[0] == 2
    status, out, err = run("submit", "--name", "s", "--quota", TEAM, "--gpus", "1", "--array", "3", **SUBMIT)
    array = Job.objects.order_by("-pk")[0].array
    assert (status, len(out.splitlines())) == (0, 3)
    assert err == f"{array} is the whole array: gpufleet show {array} says how it fares.\n"
    assert Job.objects.count() == 5


def test_the_list_is_filtered_at_a_terminal(run, personas):
    here = personas.nodes[TEAM]
    job("a", on=here, labels={"k": "two words", "j": ""}, cost_centre="CC", spec={"gpu_types": ["T"]}, template="notebook", template_version=1)
    job("b", on=here)

    for words in (["--label", "k=two words", "--label", "j"], ["--type", "T"], ["--cost-centre", "CC"], ["--template", "notebook"]):
        assert [row["name"] for row in json.loads(run("ls", "--json", *words)[1])["items"]] == ["a"], words
    assert json.loads(run("ls", "--json", "--blocker", "capacity")[1])["items"] == []
    assert run("ls", "--blocker", "nonsense")[0] == 5


def test_a_whole_array_is_shown_and_cancelled(run, personas):
    given = {"on": personas.nodes[TEAM], "owner": personas.users["submitter"], "array": "a-7"}
    for place, state in enumerate(("completed", "failed", "queued", "queued")):
        job(f"lr[{place}]", array_index=place, state=state, **given)

    status, out, err = run("show", "a-7")
    assert status == 0, err
    assert "lr\n" in out and "4 jobs, 50% ended" in out and "2 queued" in out and "unknown" in out
    assert json.loads(run("show", "a-7", "--json")[1])["size"] == 4
    assert run("show", "a-8")[0] == 4
    looked = run("cancel", "a-7", "--dry-run", **SUBMIT)[1]
    assert looked.startswith("a-7  2 jobs would change\n") and "No owner is notified." in looked
    assert run("hold", "a-7", **SUBMIT)[1] == "a-7  2 jobs changed\n"
    status, out, _ = run("hold", "a-7", "--begins", "2099-01-01T00:00:00Z", **SUBMIT)
    assert status != 0 and out == "", "too far ahead"
    begins = f"{now() + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"
    status, out, _ = run("hold", "a-7", "--begins", begins, **SUBMIT)
    assert status == 0 and re.fullmatch(rf"a-7  2 jobs planned for {begins}: pc-\d+\n", out)
    (plan,) = json.loads(run("hold", "a-7", "--begins", begins, "--json", **SUBMIT)[1])["arrays"][0]["planned"]
    assert run("planned", "--call-off", plan, **SUBMIT)[0] == 0
    told = json.loads(run("cancel", "a-7", "--json", **SUBMIT)[1])["arrays"]
    assert [(one["array"], one["counts"], len(one["batches"])) for one in told] == [("a-7", {"changes": 2}, 1)]
    assert not Job.objects.filter(state="queued").exists()
