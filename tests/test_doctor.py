"""The doctor finds what is wrong, says what to do, and finds nothing on a sound installation."""

import json
import sqlite3
from datetime import date, timedelta

import pytest
from django.db import connection

from gpufleet.core.models import Change, Feed, Sequence
from gpufleet.core.times import now
from gpufleet.doctor import Finding, Report, examine, some
from gpufleet.doctor.records import public_ids_are_below_the_counter
from quotas.models import CostMail, CostMailing
from scheduler.models import Happening, JobState, Notice, Schedule, Sending
from tests import builders
from tests.servers import Manage


def findings(*groups: str) -> list[str]:
    return [f"{check}: {finding.what}" for check, finding in examine(groups).findings if not finding.note]


def running_job(**fields):
    """A job that runs on one whole GPU, as the services would have left it."""
    job = builders.job(state=JobState.RUNNING, gpus_milli=1000, **fields)
    gpu = builders.gpu(builders.node(gpus=2))
    return job, builders.attempt(job), gpu


def hold(job, attempt, gpu, **fields):
    return attempt.placements.create(job=job, node=gpu.node, gpu=gpu, **fields)


@pytest.mark.django_db
def test_nothing_is_found_where_nothing_is_wrong():
    job, attempt, gpu = running_job()
    hold(job, attempt, gpu)
    split = builders.mig_gpu(builders.node(gpus=1))
    slices = builders.job(state=JobState.RUNNING, gpus_milli=1000)
    instance = split.mig_instances.first()
    hold(slices, builders.attempt(slices), split, mig=instance, gpu_milli=500)
    builders.quota("nlp", parent=builders.quota())

    assert findings("records", "settings") == []


def ended_job_holds():
    job, attempt, gpu = running_job()
    hold(job, attempt, gpu)
    type(job).objects.filter(pk=job.pk).update(state=JobState.COMPLETED, ended_at=now())


def attempt_left_open():
    job = builders.job(state=JobState.FAILED)
    builders.attempt(job, ended_at=None)


def gpu_shared_too_often():
    job, attempt, gpu = running_job()
    hold(job, attempt, gpu)
    other = builders.job(state=JobState.RUNNING, gpus_milli=500)
    hold(other, builders.attempt(other), gpu, gpu_milli=500)


def split_and_whole():
    job = builders.job(state=JobState.RUNNING, gpus_milli=500)
    gpu = builders.mig_gpu(builders.node(gpus=1))
    attempt = builders.attempt(job)
    hold(job, attempt, gpu, mig=gpu.mig_instances.first(), gpu_milli=500)
    hold(job, attempt, gpu, gpu_milli=500)


def half_a_gang():
    job = builders.job(state=JobState.RUNNING, gpus_milli=2000)
    hold(job, builders.attempt(job), builders.gpu(builders.node(gpus=2)))


def nothing_held():
    running_job()


def queued_job_holds():
    job, attempt, gpu = running_job()
    hold(job, attempt, gpu)
    type(job).objects.filter(pk=job.pk).update(state=JobState.QUEUED)


def removed_gpu():
    job, attempt, gpu = running_job()
    hold(job, attempt, gpu)
    gpu.removed_at = now()
    gpu.save()


def feed_behind():
    Feed.objects.update_or_create(id=1, defaults={"rev": 3})
    Change.objects.create(rev=4, at=now(), topic="gpus")


def counter_behind():
    builders.job()
    Sequence.objects.filter(name="public").update(last=0)


@pytest.mark.django_db
def test_ids_that_are_given_while_the_doctor_looks_are_no_finding():
    builders.job()
    made = []

    def meanwhile(execute, sql, params, many, context):
        found = execute(sql, params, many, context)
        if 'FROM "sequence"' in sql and not made:
            made.append(True)
            made.append(builders.job())
        return found

    with connection.execute_wrapper(meanwhile):
        assert [*public_ids_are_below_the_counter()] == []


def path_wrong():
    child = builders.quota("nlp", parent=builders.quota())
    type(child).objects.filter(pk=child.pk).update(path="elsewhere/nlp")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (ended_job_holds, "GPUs are held for work that has ended: j-"),
        (attempt_left_open, "their last attempt has not: j-"),
        (gpu_shared_too_often, "More is allocated than exists of g-"),
        (split_and_whole, "More is allocated than exists of g-"),
        (half_a_gang, "Jobs run with a part of their gang: j-"),
        (nothing_held, "Jobs run with a part of their gang: j-"),
        (queued_job_holds, "Jobs that do not run hold GPUs: j-"),
        (removed_gpu, "Jobs hold hardware that was removed: j-"),
        (feed_behind, "The feed stands at 3, but there is a change 4"),
        (counter_behind, "is above the counter of ids, which stands at 0"),
        (path_wrong, "not where their path says: elsewhere/nlp"),
    ],
)
def test_rows_that_disagree_are_found(spoil, told):
    spoil()

    assert any(told in finding for finding in findings("records"))


@pytest.mark.django_db
def test_messages_that_are_stuck_are_found():
    ago = now() - timedelta(minutes=11)
    hook = builders.webhook()
    builders.delivery(hook, state="waiting", done_at=None, made_at=ago, due_at=ago)
    failing = builders.webhook(failing_since=ago)
    builders.delivery(failing, state="waiting", done_at=None, made_at=ago, due_at=ago)
    Happening.objects.create(kind="job.failed", at=ago, job=1, revision=1, to_state="failed", actor_name="gpufleet")

    told = findings("clockwork")

    assert any("was not made into messages" in finding for finding in told)
    assert any("1 messages to webhooks (Chat) are due for more than 10 minutes" in finding for finding in told), (
        "those of one that fails wait on purpose"
    )


@pytest.mark.django_db
def test_mails_that_are_stuck_are_named(personas):
    ago = now() - timedelta(minutes=11)

    def sending(who, **fields):
        notice = Notice.objects.create(user=personas.users[who], kind="failed", at=ago, title="It failed")
        return Sending.objects.create(notice=notice, user=notice.user, **({"way": "email", "due_at": now() + timedelta(hours=1)} | fields))

    sending("viewer", attempts=2, fault="SMTPServerDisconnected: gone")
    sending("viewer", state="parked", done_at=now() - timedelta(days=2), fault="SMTPRecipientsRefused: old")
    sending("viewer", way="webhook", due_at=ago)
    assert not [finding for finding in findings("clockwork") if "mail" in finding]

    sending("submitter", due_at=ago)
    sending("team_lead", attempts=3, fault="ConnectionRefusedError: nobody there")
    sending("operator", state="parked", done_at=now(), fault="SMTPRecipientsRefused: no such person")
    told = [finding for finding in findings("clockwork") if "mail" in finding]

    assert ["1 notices by e-mail are due" in told[0], "E-mails to operator, team_lead could not be sent" in told[1]] == [True, True]
    assert "no such person" in told[1]


@pytest.mark.django_db
def test_costs_by_mail_that_are_stuck_are_named(personas):
    ago = now() - timedelta(minutes=16)
    mail = CostMail.objects.create(public_id="cm-1", node=personas.nodes["acme/research"], author_name="Finance", created_at=ago)

    def mailing(who, **fields):
        CostMailing.objects.create(mail=mail, user=personas.users[who], first=date(2026, 10, 1), made_at=ago, **({"due_at": now()} | fields))

    mailing("viewer", attempts=2, fault="SMTPServerDisconnected: gone")
    mailing("submitter", state="failed", done_at=now() - timedelta(days=8), fault="SMTPRecipientsRefused: old")
    mailing("stranger", state="sent", done_at=now(), due_at=ago)
    assert not [finding for finding in findings("clockwork") if "costs" in finding]

    mailing("finance", due_at=ago)
    mailing("team_lead", attempts=3, fault="ConnectionRefusedError: nobody there")
    mailing("operator", state="failed", done_at=now(), fault="There is no address.")
    told = [finding for finding in findings("clockwork") if "costs" in finding]
    assert "more than 15 minutes and were not sent: acme/research." in told[0]
    assert "to operator, team_lead could not be sent. The last time: There is no address." in told[1]


@pytest.mark.django_db
def test_webhooks_that_fail_for_hours_are_a_note():
    builders.webhook(name="Chat", failing_since=now() - timedelta(minutes=61))
    builders.webhook(name="New", public_id="w-new", failing_since=now() - timedelta(minutes=50))

    notes = [finding.what for _, finding in examine(["clockwork"]).findings if finding.note]

    assert any("more than an hour: Chat." in note for note in notes)


@pytest.mark.django_db
def test_a_key_that_others_can_read_is_found(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    (tmp_path / "secret_key").write_text("k")
    (tmp_path / "secret_key").chmod(0o644)

    assert any("can be read by other users" in finding for finding in findings("settings"))


@pytest.mark.django_db
def test_a_dangling_reference_is_found():
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL does not let one be made.")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA defer_foreign_keys = ON")
        cursor.execute("INSERT INTO nic (public_id, node_id, name, speed_gbps, health) VALUES ('i-1', 999, 'x', 1, 'healthy')")
        try:
            assert any("Rows refer to rows that do not exist: nic row" in finding for finding in findings("database"))
        finally:
            cursor.execute("DELETE FROM nic")


def test_a_check_that_breaks_is_a_finding_and_hides_no_other(monkeypatch):
    from gpufleet.doctor import machine

    def broken():
        raise RuntimeError("no disk")

    monkeypatch.setitem(machine.CHECKS, "room on disk", broken)

    report = examine(["machine"])

    assert any("RuntimeError: no disk" in finding.what for _, finding in report.findings)
    assert len(report.checked) == len(machine.CHECKS)


def test_a_note_does_not_make_ill():
    assert Report(findings=[("machine: x", Finding("a", "b", "c", note=True))]).healthy
    assert not Report(findings=[("machine: x", Finding("a", "b", "c"))]).healthy


def test_long_lists_are_cut():
    assert some(range(7)) == "0, 1, 2, 3, 4 and 2 more"
    assert some(["a"]) == "a"


def test_the_command_says_what_to_do_and_fails(prepared, tmp_path):
    empty = Manage(tmp_path).run("doctor", check=False)

    assert empty.returncode == 1
    assert "There is no database in" in empty.stdout
    assert "What to do: Start it with gpufleet up" in empty.stdout

    well = prepared.migrated(tmp_path).run("doctor", "--json")
    assert json.loads(well.stdout)["healthy"] is True
    assert any(check.startswith("records: ") for check in json.loads(well.stdout)["checked"])


def test_a_damaged_file_and_a_missing_migration_are_found(prepared, tmp_path):
    manage = prepared.migrated(tmp_path)
    with sqlite3.connect(tmp_path / "gpufleet.sqlite3") as file:
        file.execute("DELETE FROM django_migrations WHERE app = 'dashboards'")
        file.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('core', '0999_from_the_future', '2030-01-01')")

    told = manage.run("doctor", "--only", "database", check=False).stdout

    assert "Migrations are not applied: dashboards.0001_all_tables" in told
    assert "this version does not have: core.0999_from_the_future" in told


def test_a_backup_is_whole_private_and_never_over_another(prepared, tmp_path):
    manage = prepared.migrated(tmp_path / "data")

    manage.run("backup", str(tmp_path / "copy"))

    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    restored = Manage(tmp_path / "copy")
    assert restored.run("doctor", "--only", "database", "--only", "records").returncode == 0
    assert (tmp_path / "copy" / "secret_key").read_text() == (tmp_path / "data" / "secret_key").read_text()
    refused = manage.run("backup", str(tmp_path / "copy"), check=False)
    assert refused.returncode == 1
    assert "can't be made: File exists" in refused.stderr


@pytest.mark.django_db
def test_a_schedule_that_nobody_looks_at_is_found():
    facts = {"cron": "0 * * * *", "quota": builders.quota()}
    late = now() - timedelta(minutes=11)
    Schedule.objects.create(public_id="s-1", name="late", next_due=late, **facts)
    Schedule.objects.create(public_id="s-2", name="paused", next_due=late, paused_at=now(), **facts)
    Schedule.objects.create(public_id="s-3", name="ahead", next_due=now(), **facts)
    found = [finding.what for check, finding in examine(("clockwork",)).findings if check == "clockwork: schedules go on"]

    assert found == ["Jobs that recur are due for more than 10 minutes and were not submitted: s-1."]


@pytest.mark.django_db
def test_a_machine_on_which_jobs_are_not_kept_apart_is_a_note(settings):
    def notes():
        return [finding.what for check, finding in examine(["machine"]).findings if check == "machine: local jobs" and finding.note]

    assert notes() == []
    settings.LOCAL = {**settings.LOCAL, "LOCAL": True, "LOCAL_USER": "jobs"}
    assert ["run as jobs" in one for one in notes()] == [True]
    settings.LOCAL = {**settings.LOCAL, "LOCAL_SAME_USER": True}
    assert notes() == []
