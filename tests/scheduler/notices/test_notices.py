"""What people are told of their jobs: by their own choices, quiet hours, grouped in storms, by mail and by their own webhook."""

import json
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core import mail
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry, Change
from quotas.models import RoleBinding
from scheduler.models import Delivery, Happening, Job, JobFollow, JobState, Notice, NoticeChoices, Sending, Webhook
from scheduler.notify.outgoing import Outcome
from scheduler.notify.quiet_hours import QuietHours
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.jobs.steering import job_cancel
from scheduler.services.loop.steps import Steps, jobs_locked
from scheduler.services.notify import sending
from scheduler.services.notify.delivering import GIVE_UP, deliveries_park, deliveries_turn
from scheduler.services.notify.notices import Kind, Way, job_follow, notice_test, notices_choose, notices_read
from scheduler.services.notify.outbox import outbox_turn
from scheduler.services.notify.sending import sendings_turn
from scheduler.services.notify.webhooks import own_hook_remove
from tests import builders
from tests.builders import NOON
from tests.personas import person
from tests.scheduler.loop.worlds import Loop, submit

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"
ALL = {kind.value: ["console"] for kind in Kind}
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def mine(personas, settings):
    """The submitter, who has an address, on a console that sends mail."""
    settings.EMAIL_HOST = "mail.example.org"
    user = personas.users["submitter"]
    user.email = "sam@example.org"
    user.save()
    return user


@pytest.fixture
def choose(personas, mine):
    def call(ways=None, **facts):
        access = personas.access("submitter")
        return notices_choose(access=access, ways=ALL | (ways or {}), **facts)

    return call


def running(owner, on, count=1):
    jobs = [builders.job(f"train-{number}", on=on, owner=owner, state=JobState.RUNNING) for number in range(count)]
    for job in jobs:
        builders.attempt(job)
    return jobs


def end(jobs, to=JobState.FAILED, actor=SYSTEM, at=NOON, cause="Exit code 1."):
    with transaction.atomic():
        steps = Steps(now=at, actor=actor)
        for job in jobs_locked([job.pk for job in jobs]).values():
            steps.move(job, to, cause)
        steps.write(News())
    return outbox_turn(now=at)


def sent(at=NOON):
    sendings_turn(clock=lambda: at, rng=random.Random(1))
    return mail.outbox


# Who is told of what


def test_an_owner_is_told_in_the_console_without_having_chosen_anything(personas):
    end(running(personas.users["submitter"], personas.nodes[TEAM]))

    notice = Notice.objects.get()
    assert (notice.user, notice.kind, notice.title, notice.text) == (personas.users["submitter"], "failed", "train-0 failed", "Exit code 1.")
    assert Sending.objects.count() == 0
    assert Change.objects.filter(topic="bells", rows=[{"id": notice.user_id}]).exists()


def test_nobody_is_told_what_he_did_himself(personas):
    jobs = running(personas.users["submitter"], personas.nodes[TEAM])

    end(jobs, JobState.CANCELLED, actor=personas.access("submitter").actor)

    assert Notice.objects.count() == 0


@pytest.mark.parametrize(("who", "told"), [("submitter", False), ("team_lead", True), (None, True)])
def test_who_cancelled_what_ran_is_not_told_when_it_has_gone(personas, who, told):
    """It goes some time after he asked for it, and by itself."""
    builders.node(gpus=1)
    loop = Loop()
    job = submit(personas.nodes[TEAM], owner=personas.users["submitter"])
    loop.tick()
    loop.up(job)
    outbox_turn(now=NOON)
    Notice.objects.all().delete()
    if who is None:
        job_stop(job=Job.objects.get(pk=job.pk), to=JobState.CANCELLED, outcome="cancelled", cause="Replaced.", now=loop.now, actor=SYSTEM)
    else:
        job_cancel(access=personas.access(who), job=Job.objects.get(pk=job.pk), reason="Wrong data.", now=loop.now)
    loop.after(seconds=5).over(job, exit_code=143)
    outbox_turn(now=loop.now)

    assert Job.objects.get(pk=job.pk).state == JobState.CANCELLED
    assert Notice.objects.filter(kind="finished").exists() is told


def test_where_nobody_is_to_be_told_nothing_is_written(personas, choose):
    choose(ways={"failed": []})
    team = personas.nodes[TEAM]
    with transaction.atomic():
        steps = Steps(now=NOON)
        jobs = [*running(None, team), *running(personas.users["submitter"], team)]
        for job in jobs_locked([job.pk for job in jobs]).values():
            steps.move(job, JobState.FAILED, "Test")
        steps.write(News())

    assert Happening.objects.count() == 0


def test_who_follows_a_job_is_told_as_long_as_he_sees_it(personas):
    jobs = running(None, personas.nodes[TEAM], 2)
    for job in jobs:
        job_follow(access=personas.access("viewer"), job=job, follows=True, now=NOON)
    end(jobs[:1])
    assert Notice.objects.get().user == personas.users["viewer"]

    RoleBinding.objects.filter(user=personas.users["viewer"]).delete()
    end(jobs[1:])
    assert Notice.objects.count() == 1


def test_causes_name_no_job_and_no_team_that_the_reader_does_not_see(personas):
    other = builders.job(on=personas.nodes["acme/product/search"])
    jobs = running(personas.users["submitter"], personas.nodes[TEAM])
    hook = builders.webhook(personas.nodes[TEAM])

    end(jobs, cause=f"It made room for {other.public_id} of acme/product/search.")

    told = "It made room for another job of another team."
    assert Notice.objects.get().text == told
    assert json.loads(Delivery.objects.get(hook=hook).body)["cause"] == told


def test_many_people_and_hooks_cost_no_more_questions_than_few(personas):
    """Neither what each may do nor what the causes name is asked for each of them."""
    team, other = personas.nodes[TEAM], personas.nodes["acme/product/search"]

    def questions(people):
        for number in range(people):
            user = person(f"one-of-{people}-{number}", role="viewer", node=team)
            builders.webhook(team)
            jobs = running(user, team, 2)
            with transaction.atomic():
                steps = Steps(now=NOON)
                for job, to in zip(jobs_locked([job.pk for job in jobs]).values(), (JobState.FAILED, JobState.COMPLETED), strict=True):
                    steps.move(job, to, f"It made room for {builders.job(on=other).public_id} of {other.path}.")
                steps.write(News())
        with CaptureQueriesContext(connection) as asked:
            assert outbox_turn(now=NOON) == 2 * people
        return sum(one["sql"].startswith("SELECT") for one in asked.captured_queries)

    questions(1)
    few = questions(2)
    assert questions(9) == few
    assert set(Notice.objects.values_list("text", flat=True)) == {"It made room for another job of another team."}


def test_nothing_is_asked_about_names_where_everybody_sees_all(personas):
    jobs = running(personas.users["superuser"], personas.nodes[TEAM])

    with CaptureQueriesContext(connection) as asked:
        end(jobs, cause="It made room for j-1 of acme/product/search.")

    assert Notice.objects.get().text == "It made room for j-1 of acme/product/search."
    assert not [one for one in asked.captured_queries if one["sql"].startswith('SELECT "quota_node"."path"')]


def test_following_ends(personas):
    (job,) = running(None, personas.nodes[TEAM])
    access = personas.access("viewer")
    assert job_follow(access=access, job=job, follows=True, now=NOON)
    assert not job_follow(access=access, job=job, follows=True, now=NOON), "twice is once"
    assert job_follow(access=access, job=job, follows=False, now=NOON)

    end([job])
    assert (JobFollow.objects.count(), Notice.objects.count()) == (0, 0)


def test_who_was_switched_off_is_told_nothing(personas):
    user = personas.users["submitter"]
    user.is_active = False
    user.save()

    end(running(user, personas.nodes[TEAM]))

    assert Notice.objects.count() == 0


def test_a_storm_is_one_notice_of_a_kind(personas, mine, choose):
    choose(ways={"failed": ["console", "email"]})

    end(running(mine, personas.nodes[TEAM], 300))

    notice = Notice.objects.get()
    assert (notice.count, notice.title) == (300, "300 jobs failed")
    assert "train-0" in notice.text
    assert "and 297 more" in notice.text


# Mail


def test_what_happens_shortly_after_one_another_is_one_mail_of_text_and_html(personas, mine, choose):
    choose(ways={"failed": ["email"], "finished": ["email"]})
    jobs = running(mine, personas.nodes[TEAM], 3)
    end(jobs[:1], cause="<script>alert(1)</script>")
    end(jobs[1:2], JobState.COMPLETED, at=NOON + timedelta(seconds=5))

    assert sent(NOON + timedelta(seconds=10)) == []
    (message,) = sent(NOON + timedelta(seconds=20))

    assert message.to == ["sam@example.org"]
    assert message.subject == "gpufleet: 2 notices about your jobs"
    assert "train-0 failed" in message.body
    assert "train-1 completed" in message.body
    html, kind = message.alternatives[0]
    assert kind == "text/html"
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    assert set(Sending.objects.values_list("state", flat=True)) == {"delivered"}
    assert Notice.objects.filter(in_console=True).count() == 0, "the console was not chosen"


def test_thousands_of_happenings_are_few_mails(personas, mine, choose):
    choose(ways={"failed": ["email"]})
    jobs = running(mine, personas.nodes[TEAM], 120)
    for second in range(0, 120, 10):
        at = NOON + timedelta(seconds=second)
        end(jobs[second : second + 10], at=at)
        sent(at)
    sent(NOON + timedelta(minutes=10))

    assert len(mail.outbox) == 2, "one soon, and one for all that came in the two minutes after it"
    assert "jobs failed" in mail.outbox[1].body
    assert sum(Notice.objects.values_list("count", flat=True)) == 120
    assert Sending.objects.exclude(state="delivered").count() == 0


def test_a_mail_that_fails_is_tried_again(personas, mine, choose, monkeypatch):
    choose(ways={"failed": ["email"]})
    end(running(mine, personas.nodes[TEAM]))

    with monkeypatch.context() as patch:
        patch.setattr("django.core.mail.EmailMultiAlternatives.send", refuse)
        at = NOON + timedelta(seconds=20)
        sent(at)
        row = Sending.objects.get()
        assert (row.state, row.attempts) == ("waiting", 1)
        assert "nobody there" in row.fault
        assert row.due_at > at
    sent(row.due_at)

    assert len(mail.outbox) == 1
    assert Sending.objects.get().state == "delivered"


def refuse(self, *_, **__):
    raise ConnectionRefusedError("nobody there")


def tried_until_given_up(at):
    """Send whenever it is due. Returns the first and the last of those times."""
    first = row = None
    while row is None or row.state == "waiting":
        sent(at)
        row, last = Sending.objects.get(), at
        first, at = first or at, row.due_at
    assert row.state == "parked"
    return first, last


def test_a_mail_that_nobody_takes_is_given_up_a_day_after_its_first_try(personas, mine, choose, monkeypatch):
    """Not a day after it was made: quiet hours may have held it back for most of that."""
    monkeypatch.setattr("django.core.mail.EmailMultiAlternatives.send", refuse)
    choose(ways={"failed": ["email"]}, zone="UTC", quiet_from=12 * 60, quiet_until=11 * 60)
    end(running(mine, personas.nodes[TEAM]))
    assert Sending.objects.get().due_at == NOON + timedelta(hours=23)

    first, last = tried_until_given_up(NOON + timedelta(hours=23))

    assert first == NOON + timedelta(hours=23)
    assert timedelta(days=1) <= last - first < timedelta(days=1, minutes=80)
    assert "nobody there" in Sending.objects.get().fault


def test_a_mail_that_was_tried_before_its_first_try_was_kept_has_its_day_too(personas, mine, choose, monkeypatch):
    monkeypatch.setattr("django.core.mail.EmailMultiAlternatives.send", refuse)
    choose(ways={"failed": ["email"]})
    end(running(mine, personas.nodes[TEAM]))
    Sending.objects.update(attempts=3)

    first, last = tried_until_given_up(NOON + timedelta(minutes=1))

    assert timedelta(days=1) <= last - first < timedelta(days=1, minutes=80)


def test_who_is_late_with_a_mail_does_not_undo_what_another_wrote(personas, mine, choose):
    choose(ways={"failed": ["email"]})
    end(running(mine, personas.nodes[TEAM]))
    at = NOON + timedelta(minutes=1)
    slow = sending._claim(Way.EMAIL, now=at)
    later = at + sending.CLAIM
    quick = sending._claim(Way.EMAIL, now=later)

    mine.email = ""
    slow[0].user.email = ""  # so that it fails
    sending._mail(slow, now=later, rng=random.Random(1))
    row = Sending.objects.get()
    assert (row.state, row.fault, row.due_at) == ("waiting", "", later + sending.CLAIM), "the other one is at it"

    sending._mail(quick, now=later, rng=random.Random(1))
    sending._mail(slow, now=later, rng=random.Random(1))
    assert Sending.objects.get().state == "delivered"


def test_a_claim_outlasts_the_slowest_mail_server(settings):
    """Connect to some addresses, greeting, EHLO twice, STARTTLS, sign in in three, sender, receiver, DATA, text, QUIT: each within the time-out."""
    assert sending.CLAIM.total_seconds() >= 20 * settings.EMAIL_TIMEOUT


def test_a_mail_header_takes_no_line_of_a_job_name(personas, mine, choose):
    choose(ways={"failed": ["email"]})
    (job,) = running(mine, personas.nodes[TEAM])
    type(job).objects.filter(pk=job.pk).update(name="a\nBcc: other@example.org")

    end([job])
    (message,) = sent(NOON + timedelta(minutes=1))

    assert "\n" not in message.subject
    assert message.recipients() == ["sam@example.org"]


def test_who_dies_while_mailing_sends_again(personas, mine, choose, monkeypatch):
    choose(ways={"failed": ["email"]})
    end(running(mine, personas.nodes[TEAM]))
    at = NOON + timedelta(minutes=1)

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("scheduler.services.notify.sending.mail_of", die)
        sent(at)

    assert len(sent(at + sending.CLAIM)) == 1


# One's own webhook


def test_ones_own_webhook_gets_all_that_is_due_as_one_message(personas, mine, choose):
    Webhook.objects.all().delete()
    hook = builders.webhook(node=None, person=mine, kinds=[])
    choose(ways={"failed": ["webhook"], "finished": ["webhook"]})
    jobs = running(mine, personas.nodes[TEAM], 2)
    end(jobs[:1])
    end(jobs[1:], JobState.COMPLETED)

    sent()

    delivery = Delivery.objects.get()
    said = json.loads(delivery.body)
    assert (delivery.hook, delivery.kind) == (hook, "notices")
    assert [(one["kind"], one["title"]) for one in said["notices"]] == [("failed", "train-0 failed"), ("finished", "train-1 completed")]


@pytest.fixture
def own(personas, mine, choose):
    """The submitter's webhook, and one notice on its way to it."""
    hook = builders.webhook(node=None, person=mine, kinds=[], name="Own notices")
    choose(ways={"failed": ["webhook"]})
    end(running(mine, personas.nodes[TEAM]))
    return hook


def test_without_a_webhook_it_is_said_that_it_did_not_go_out(own):
    Webhook.objects.filter(pk=own.pk).update(removed_at=NOON)

    sent()

    row = Sending.objects.get()
    assert row.state == "parked"
    assert "no webhook" in row.fault


def answered(fault, at=NOON):
    outcome = Outcome(500 if fault else 200, 1, fault)
    return deliveries_turn(clock=lambda: at, rng=random.Random(1), send=lambda *_: outcome)


def test_to_a_webhook_it_has_gone_out_when_the_receiver_has_taken_it(own):
    sent()
    answered("It answered 500.")
    assert Sending.objects.get().state == "waiting"

    later = NOON + timedelta(minutes=1)
    sent(later)
    assert Delivery.objects.count() == 1, "it is handed over once"
    answered("", later)

    row = Sending.objects.get()
    assert (row.state, row.done_at, row.fault) == ("delivered", later, "")


def test_what_no_receiver_takes_is_given_up_with_its_message(own):
    sent()
    answered("It answered 500.")
    answered("It answered 501.", NOON + GIVE_UP - timedelta(seconds=1))
    deliveries_park(now=NOON + GIVE_UP + timedelta(hours=2))

    row = Sending.objects.get()
    assert (row.state, row.fault) == ("parked", "It answered 501.")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"state": "paused"}, "paused"),
        ({"state": "disabled", "disabled_at": NOON}, "switched off"),
        ({"removed_at": NOON}, "removed"),
        ({}, "worker"),
    ],
)
def test_what_nobody_tried_is_given_up_with_the_reason(own, facts, said):
    sent()
    Webhook.objects.filter(pk=own.pk).update(**facts)

    assert deliveries_park(now=NOON + GIVE_UP) == 1

    assert said in Delivery.objects.get().fault
    assert Sending.objects.get().fault == Delivery.objects.get().fault


def test_while_ones_own_webhook_is_switched_off_nothing_is_said_to_have_gone_out(own):
    Webhook.objects.filter(pk=own.pk).update(state="disabled", disabled_at=NOON)

    sent()

    row = Sending.objects.get()
    assert row.state == "parked"
    assert "switched off" in row.fault
    assert Delivery.objects.count() == 0


def test_who_has_a_webhook_of_his_own_is_told_what_he_can_do_when_it_was_switched_off(own, mine):
    """It has no page with a test and a switch, as those of a team have."""
    sent()
    Webhook.objects.filter(pk=own.pk).update(failing_since=NOON - timedelta(days=5))

    answered("It answered 500.")

    notice = Notice.objects.get(user=mine, kind="own")
    assert notice.title == "Your own webhook was switched off"
    assert "press Change" in notice.text
    assert "resume" not in notice.text


# Quiet hours


def test_in_quiet_hours_mail_waits_and_comes_as_one(personas, mine, choose):
    choose(ways={"failed": ["console", "email"]}, zone="Europe/Berlin", quiet_from=22 * 60, quiet_until=7 * 60)
    night = datetime(2026, 11, 20, 22, 30, tzinfo=BERLIN).astimezone(UTC)
    jobs = running(mine, personas.nodes[TEAM], 3)
    for number, job in enumerate(jobs):
        end([job], at=night + timedelta(hours=number))
    morning = datetime(2026, 11, 21, 7, 0, tzinfo=BERLIN).astimezone(UTC)

    assert Notice.objects.filter(in_console=True).count() == 3, "the console is quiet by itself"
    assert sent(morning - timedelta(seconds=1)) == []
    assert len(sent(morning)) == 1
    assert mail.outbox[0].subject == "gpufleet: 3 notices about your jobs"


def test_in_quiet_hours_it_may_be_dropped_and_what_is_urgent_passes(personas, mine, choose):
    quiet = {"zone": "UTC", "quiet_from": 0, "quiet_until": 1439, "quiet_rule": "drop", "urgent": ["failed"]}
    choose(ways={"failed": ["email"], "finished": ["email"]}, **quiet)
    jobs = running(mine, personas.nodes[TEAM], 2)
    end(jobs[:1])
    end(jobs[1:], JobState.COMPLETED)

    sent(NOON + timedelta(minutes=1))

    assert len(mail.outbox) == 1
    assert "train-0 failed" in mail.outbox[0].body
    assert dict(Sending.objects.values_list("notice__kind", "state")) == {"failed": "delivered", "finished": "dropped"}


def at(text, fold=0):
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).astimezone(UTC)


@pytest.mark.parametrize(
    ("quiet", "moment", "ends"),
    [
        ((22, 7), at("2026-11-20 21:59"), None),
        ((22, 7), at("2026-11-20 22:00"), at("2026-11-21 07:00")),
        ((22, 7), at("2026-11-21 06:59"), at("2026-11-21 07:00")),
        ((22, 7), at("2026-11-21 07:00"), None),
        ((9, 17), at("2026-11-21 12:00"), at("2026-11-21 17:00")),
        # The night in which clocks go back has ten hours of quiet, the one in which they go forward eight.
        ((22, 7), at("2026-10-24 22:00"), at("2026-10-24 22:00") + timedelta(hours=10)),
        ((22, 7), at("2026-03-28 22:00"), at("2026-03-28 22:00") + timedelta(hours=8)),
        # 02:30 comes twice: who is quiet until then and past the first is quiet until the second.
        ((22, 2.5), at("2026-10-25 02:15", fold=0), at("2026-10-25 02:30", fold=0)),
        ((22, 2.5), at("2026-10-25 02:15", fold=1), at("2026-10-25 02:30", fold=1)),
        # 02:30 does not come: quiet ends when the clock has jumped over it.
        ((22, 2.5), at("2026-03-29 01:59"), at("2026-03-29 03:30")),
    ],
)
def test_when_quiet_hours_end(quiet, moment, ends):
    begins, until = (round(60 * hour) for hour in quiet)

    assert QuietHours(begins, until, "Europe/Berlin").end_after(moment) == ends


@given(
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]),
)
def test_quiet_hours_always_end_soon(begins, ends, moment, zone):
    hours = QuietHours(begins, ends, zone)
    end = hours.end_after(moment)

    assert end is None or timedelta(0) < end - moment <= timedelta(hours=26)


# Choosing, reading, trying


def test_every_fault_of_a_choice_is_named(personas):
    with pytest.raises(ValidationError) as caught:
        notices_choose(
            access=personas.access("submitter"),
            ways={"failed": ["email"], "finished": ["webhook"], "started": ["pigeon"], "bored": []},
            zone="../etc/passwd",
            quiet_from=60,
            quiet_rule="shout",
            urgent=["bored"],
        )

    assert set(caught.value.message_dict) == {
        "ways.failed",
        "ways.finished",
        "ways.started",
        "ways.bored",
        "zone",
        "quiet_until",
        "quiet_rule",
        "urgent",
    }
    assert "you have named none" in caught.value.message_dict["ways.finished"][0]
    assert NoticeChoices.objects.count() == 0


def test_with_ones_own_webhook_its_way_goes_from_the_choices(personas, mine, choose):
    builders.webhook(node=None, person=mine, kinds=[])
    choose(ways={"failed": ["console", "webhook"], "finished": ["webhook"]})

    assert own_hook_remove(access=personas.access("submitter"), now=NOON)

    row = NoticeChoices.objects.get()
    assert (row.ways["failed"], row.ways["finished"], row.revision) == (["console"], [], 2)
    assert AuditEntry.objects.filter(action="notices.choose").count() == 2
    assert not own_hook_remove(access=personas.access("submitter"), now=NOON)


def test_reading_is_ones_own(personas):
    end(running(personas.users["submitter"], personas.nodes[TEAM]))
    notice = Notice.objects.get()

    assert notices_read(access=personas.access("superuser"), keys=[notice.pk], now=NOON) == 0
    assert notices_read(access=personas.access("submitter"), keys=[notice.pk], now=NOON) == 1
    assert notices_read(access=personas.access("submitter"), keys=None, now=NOON) == 0


def test_a_test_goes_every_way_that_is_used_whatever_the_hour(personas, mine, choose):
    choose(ways={"failed": ["email"]}, quiet_from=0, quiet_until=1439, quiet_rule="drop")

    ways = notice_test(access=personas.access("submitter"), now=NOON)
    sent()

    assert set(ways) == {Way.CONSOLE, Way.EMAIL}
    assert mail.outbox[0].subject == "gpufleet: This is a test"
    assert Notice.objects.get().title == "This is a test"


def test_tests_go_out_one_at_a_time_and_each_is_read_before_the_next(personas, mine, choose):
    choose(ways={"failed": ["email"]})
    access = personas.access("submitter")
    notice_test(access=access, now=NOON)
    with pytest.raises(Conflict, match="on its way already"):
        notice_test(access=access, now=NOON)
    notice_test(access=personas.access("viewer"), now=NOON)

    sent()
    with pytest.raises(Conflict, match="behind the bell"):
        notice_test(access=access, now=NOON)
    notices_read(access=access, keys=None, now=NOON)
    notice_test(access=access, now=NOON)

    assert Notice.objects.filter(user=mine).count() == 2
    assert AuditEntry.objects.filter(action="notices.test").count() == 3


def test_who_asks_for_a_second_test_is_told_where_the_first_is(personas):
    client = personas.client("submitter")
    assert client.post("/api/v1/me/notices/test").status_code == 200
    assert client.post("/api/v1/me/notices/test").status_code == 409

    page = client.post("/notifications/test/", follow=True)

    assert "The last test is behind the bell" in page.content.decode()
    assert Notice.objects.count() == 1


def test_the_author_of_a_webhook_that_was_switched_off_is_told(personas, monkeypatch):
    lead = personas.users["team_lead"]
    hook = builders.webhook(personas.nodes[TEAM], author=lead, failing_since=NOON - timedelta(days=5))
    builders.delivery(hook, state="waiting", done_at=None)

    deliveries_turn(clock=lambda: NOON, rng=random.Random(1), send=lambda *_: Outcome(500, 1, "It answered 500."))

    assert Notice.objects.get(user=lead).title == "The webhook Chat was switched off"
