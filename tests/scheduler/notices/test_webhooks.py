"""Webhooks: who manages them, that nothing is lost on the way, and what becomes of messages that nobody takes."""

import hashlib
import hmac
import json
import random
import threading
from datetime import timedelta
from itertools import pairwise

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry
from scheduler.models import Delivery, Happening, JobState, Webhook, WebhookState
from scheduler.notify.happenings import TOLD, Happened
from scheduler.notify.outgoing import Outcome
from scheduler.selectors.webhooks import hook_places, hooks_managed
from scheduler.services.jobs.jobs import job_create, job_transition
from scheduler.services.loop.steps import Steps, jobs_locked
from scheduler.services.notify.delivering import (
    AT_ONCE,
    AT_ONCE_A_HOOK,
    CLAIM,
    GIVE_UP,
    deliveries_claim,
    deliveries_park,
    deliveries_settle,
    deliveries_turn,
    pause_after,
)
from scheduler.services.notify.outbox import outbox_turn
from scheduler.services.notify.webhooks import delivery_repeat, hook_change, hook_create, hook_remove, hook_secret, hook_test
from tests import builders
from tests.builders import NOON, spec_of

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"
URL = "https://hooks.example.org/x"
GOOD = Outcome(200, 12, "", "ok")
BAD = Outcome(500, 12, "It answered 500.", "")


class Clock:
    """Stands still until it is told."""

    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now


@pytest.fixture
def hook(personas):
    def call(who="team_lead", path=TEAM, **facts):
        given = {"name": "Chat", "url": URL, "kinds": list(Happened)} | facts
        return hook_create(access=personas.access(who), node=personas.nodes[path], now=NOON, **given)

    return call


@pytest.fixture
def turn():
    """One turn with a sender that answers as it is told; returns the messages that were sent."""

    def call(answer=GOOD, at=NOON):
        sent = []

        def send(url, body, headers, rules):
            sent.append((url, body, headers))
            return answer(headers) if callable(answer) else answer

        clock = Clock()
        clock.now = at
        deliveries_turn(clock=clock, rng=random.Random(1), send=send)
        return sent

    return call


def submitted(personas, path=TEAM, who="submitter"):
    return job_create(
        name="train",
        quota=personas.nodes[path],
        owner=personas.users[who],
        job_class="batch",
        spec=spec_of(gpus=8),
        gpus_milli=8000,
        now=NOON,
        actor=personas.access(who).actor,
    )


# Who may


@pytest.mark.parametrize("who", ["viewer", "submitter", "finance", "stranger", "team_lead", "quota_admin", "operator"])
def test_who_may_make_one(personas, hook, who):
    if who in ("team_lead", "quota_admin", "operator"):
        assert hook(who).hook.author == personas.users[who]
    else:
        with pytest.raises(PermissionDenied):
            hook(who)


def test_webhooks_are_seen_by_those_who_manage_them_only(personas, hook):
    own, above, elsewhere = hook(), hook("operator", "acme/research"), hook("operator", "acme/product/search")
    seen = {
        who: {one.public_id for one in hooks_managed(personas.access(who))}
        for who in ("viewer", "submitter", "team_lead", "quota_admin", "operator", "superuser")
    }

    mine = {own.hook.public_id}
    assert seen["viewer"] == seen["submitter"] == set()
    assert seen["team_lead"] == mine
    assert seen["quota_admin"] == mine | {above.hook.public_id}
    assert seen["operator"] == seen["superuser"] == {one.hook.public_id for one in (own, above, elsewhere)}
    assert [node.path for node in hook_places(personas.access("team_lead"))] == [TEAM]
    with pytest.raises(PermissionDenied):
        hook_remove(access=personas.access("team_lead"), hook=above.hook, now=NOON)


def test_every_fault_is_named_at_its_field(hook):
    with pytest.raises(ValidationError) as caught:
        hook(name=" ", url="https://10.0.0.1/", kinds=["job.exploded"], reason="x" * 501)

    assert set(caught.value.message_dict) == {"name", "url", "kinds", "reason"}


def test_a_node_has_twenty_at_most(hook):
    for number in range(20):
        hook(name=f"Chat {number}")

    with pytest.raises(ValidationError) as caught:
        hook()
    assert "20 webhooks" in caught.value.message_dict["node"][0]


def test_the_secret_is_nowhere_in_the_database(hook):
    new = hook()

    row = Webhook.objects.values().get(pk=new.hook.pk)
    assert new.secret not in str(row)
    assert new.secret not in str(list(AuditEntry.objects.values()))


def test_the_audit_log_names_the_host_of_an_address_and_no_more(personas, hook):
    """Its readers are more than those who may see the address."""
    made = hook(url="https://hooks.example.org:8443/T0/secret?key=word").hook
    hook_change(access=personas.access("team_lead"), hook=made, url="https://hooks.example.org:8443/T0/another", now=NOON)
    hook_remove(access=personas.access("team_lead"), hook=made, now=NOON)

    entries = list(AuditEntry.objects.filter(object_kind="webhook").order_by("pk").values("before", "after"))
    assert not any(word in str(entries) for word in ("T0", "secret", "word", "another"))
    told = entries[0]["after"]["address"]
    assert told.startswith("https://hooks.example.org:8443 (")
    assert entries[1]["before"]["address"] == told
    assert entries[1]["after"]["address"] not in (None, told), "it is told that it is another one"


def test_a_change_needs_the_revision_that_was_read(personas, hook):
    made = hook().hook
    hook_change(access=personas.access("team_lead"), hook=made, name="Pager", seen=1, now=NOON)

    with pytest.raises(Stale):
        hook_change(access=personas.access("team_lead"), hook=made, state="paused", seen=1, now=NOON)
    assert Webhook.objects.get().name == "Pager"
    assert AuditEntry.objects.filter(action="webhook.update").get().after == {"name": "Pager"}


# The outbox


def test_nothing_is_written_where_nobody_listens(personas, hook):
    submitted(personas)
    assert Happening.objects.count() == 0

    hook(kinds=["job.failed"])
    submitted(personas)
    assert Happening.objects.count() == 0, "it was asked for another kind"

    paused = hook(kinds=["job.submitted"])
    hook_change(access=personas.access("team_lead"), hook=paused.hook, state="paused", now=NOON)
    submitted(personas)
    assert Happening.objects.count() == 0


def test_what_happened_goes_with_its_transaction(personas, hook):
    hook()
    with transaction.atomic():
        submitted(personas)
        transaction.set_rollback(True)

    assert Happening.objects.count() == 0


def test_many_steps_of_a_tick_are_one_statement(personas, hook, django_assert_max_num_queries):
    hook()
    jobs = [builders.job(on=personas.nodes[TEAM], state=JobState.STARTING) for _ in range(30)]
    for one in jobs:
        builders.attempt(one)

    def write(keys):
        with transaction.atomic():
            steps = Steps(now=NOON)
            for job in jobs_locked(keys).values():
                steps.move(job, JobState.RUNNING, "All workers are up.")
            steps.write(News())

    write([jobs[0].pk])
    with django_assert_max_num_queries(14):
        write([one.pk for one in jobs[1:]])

    assert Happening.objects.filter(kind="job.started").count() == 30


def test_only_the_hooks_above_a_job_are_told(personas, hook, turn):
    own, above, beside = hook(), hook("operator", "acme/research"), hook("operator", "acme/research/vision")
    job = submitted(personas)

    assert outbox_turn(now=NOON) == 1
    told = turn()

    assert Happening.objects.count() == 0
    assert set(Delivery.objects.values_list("hook_id", flat=True)) == {own.hook.pk, above.hook.pk}
    assert beside.hook.pk not in Delivery.objects.values_list("hook_id", flat=True)
    bodies = [json.loads(body) for _, body, _ in told]
    assert bodies[0] == bodies[1]
    assert bodies[0] == {
        "version": 1,
        "id": bodies[0]["id"],
        "kind": "job.submitted",
        "at": "2026-11-20T12:00:00.000Z",
        "console": "",
        "job": {
            "id": job.public_id,
            "name": "train",
            "quota": TEAM,
            "owner": "submitter",
            "class": "batch",
            "gpus_milli": 8000,
            "labels": {},
        },
        "revision": 1,
        "attempt": None,
        "from": None,
        "to": "queued",
        "cause": "Submitted.",
        "by": "Submitter",
    }


def test_happenings_of_a_job_tell_their_order(personas, hook):
    hook()
    job = submitted(personas)
    job_transition(job=job, to=JobState.FAILED, now=NOON, cause="Test", actor=SYSTEM)

    outbox_turn(now=NOON)

    told = [(json.loads(one.body)["kind"], json.loads(one.body)["revision"]) for one in Delivery.objects.order_by("pk")]
    assert told == [("job.submitted", 1), ("job.failed", 2)]


def test_every_step_that_people_ask_about_has_its_kind():
    assert TOLD["starting", "running"] == TOLD["resuming", "running"] == Happened.STARTED
    assert TOLD["running", "preempted"] == Happened.PREEMPTED
    assert ("reserved", "preempted") not in TOLD, "it held nothing"
    assert TOLD["running", "queued"] == Happened.REQUEUED
    assert TOLD["running", "failed"] == TOLD["queued", "failed"] == Happened.FAILED
    assert set(TOLD.values()) == set(Happened) - {Happened.NEAR_LIMIT, Happened.NODE_DRAINING, Happened.REPLACE_STOPPED}


# Deliveries


def test_a_real_receiver_gets_a_signed_message(personas, hook, receiver):
    new = hook(url=receiver.url)
    submitted(personas)
    outbox_turn(now=NOON)

    deliveries_turn(clock=Clock(), rng=random.Random(1))

    headers, body = receiver.calls[0]
    seconds = headers["Gpufleet-Signature"].split(",")[0].removeprefix("t=")
    expected = hmac.new(new.secret.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["Gpufleet-Signature"] == f"t={seconds},v1={expected}"
    assert int(seconds) == int(NOON.timestamp())
    sent = Delivery.objects.get()
    assert (headers["Gpufleet-Delivery"], headers["Gpufleet-Event"]) == (sent.public_id, "job.submitted")
    assert (sent.state, sent.status, sent.attempts, sent.excerpt) == ("delivered", 200, 1, "thank you")


def test_who_dies_between_sending_and_writing_it_down_sends_again_under_the_same_id(personas, hook, receiver, turn):
    hook(url=receiver.url)
    submitted(personas)
    outbox_turn(now=NOON)

    class Killed(BaseException):
        pass

    def die(*_, **__):
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr("scheduler.services.notify.delivering.deliveries_settle", die)
        deliveries_turn(clock=Clock(), rng=random.Random(1))
    assert len(receiver.calls) == 1

    early, late = Clock(), Clock()
    early.now, late.now = NOON + CLAIM / 2, NOON + CLAIM
    deliveries_turn(clock=early, rng=random.Random(1))
    assert len(receiver.calls) == 1, "the claim still holds"
    deliveries_turn(clock=late, rng=random.Random(1))
    deliveries_turn(clock=late, rng=random.Random(1))

    assert receiver.ids == [Delivery.objects.get().public_id] * 2
    assert Delivery.objects.get().state == "delivered"


def test_what_one_has_claimed_nobody_else_is_given(personas, hook):
    hook()
    for _ in range(3):
        submitted(personas)
    outbox_turn(now=NOON)

    first, second = deliveries_claim(now=NOON), deliveries_claim(now=NOON)

    assert len(first) == 3
    assert second == []


def test_who_is_late_does_not_undo_what_another_wrote(personas, hook):
    hook()
    submitted(personas)
    outbox_turn(now=NOON)
    slow = deliveries_claim(now=NOON)
    quick = deliveries_claim(now=NOON + CLAIM)
    deliveries_settle(done=[(quick[0], GOOD)], now=NOON + CLAIM, rng=random.Random(1))

    deliveries_settle(done=[(slow[0], BAD)], now=NOON + CLAIM, rng=random.Random(1))

    assert Delivery.objects.get().state == "delivered"


def test_a_failed_one_is_tried_later_each_time_and_given_up_after_a_day(personas, hook, turn):
    hook()
    submitted(personas)
    outbox_turn(now=NOON)
    at, pauses = NOON, []
    while turn(BAD, at):
        row = Delivery.objects.get()
        pauses.append((row.due_at - at).total_seconds())
        at = row.due_at

    row.refresh_from_db()
    assert row.state == "parked"
    assert at - timedelta(minutes=80) < NOON + GIVE_UP <= at
    assert 8 <= pauses[0] <= 12
    assert all(later > earlier for earlier, later in pairwise(pauses[:6]))
    assert 20 < row.attempts < 40
    assert Webhook.objects.get().failing_since == NOON


def test_pauses_differ_so_that_not_all_come_back_at_once():
    rng = random.Random(7)

    assert len({pause_after(3, rng) for _ in range(20)}) == 20


def test_a_hook_that_fails_is_tried_with_one_message_at_a_time(personas, hook, turn):
    hook()
    for _ in range(10):
        submitted(personas)
    outbox_turn(now=NOON)

    assert len(turn(BAD)) == AT_ONCE_A_HOOK + 6, "after the first round it is known to fail: one a round"
    again = turn(GOOD, NOON + timedelta(minutes=1))

    assert len(again) == 10
    assert Webhook.objects.get().failing_since is None


def test_a_hook_that_only_fails_for_days_is_switched_off(personas, hook, turn):
    hook()
    for day in range(6):
        submitted(personas)
        at = NOON + timedelta(days=day, seconds=1)
        outbox_turn(now=at)
        turn(BAD, at)

    found = Webhook.objects.get()
    assert (found.state, found.disabled_at) == (WebhookState.DISABLED, NOON + timedelta(days=5, seconds=1))
    assert AuditEntry.objects.filter(action="webhook.disable").count() == 1
    assert turn(GOOD, NOON + timedelta(days=5, hours=2)) == [], "nothing is sent any more"
    active = hook_change(access=personas.access("team_lead"), hook=found, state="active", now=NOON)
    assert (active.state, active.disabled_at, active.failing_since) == ("active", None, None)


def test_what_waits_for_a_paused_hook_is_given_up_after_a_day(personas, hook, turn):
    made = hook().hook
    submitted(personas)
    outbox_turn(now=NOON)
    hook_change(access=personas.access("team_lead"), hook=made, state="paused", now=NOON)

    assert turn() == []
    assert deliveries_park(now=NOON + GIVE_UP - timedelta(seconds=1)) == 0
    assert deliveries_park(now=NOON + GIVE_UP) == 1


def test_one_slow_hook_leaves_room_for_the_others(personas, hook):
    slow, quick = hook(name="Slow"), hook("operator", "acme/research", name="Quick")
    for _ in range(50):
        submitted(personas)
    outbox_turn(now=NOON)

    claimed = deliveries_claim(now=NOON)

    assert {one.hook.pk: sum(other.hook == one.hook for other in claimed) for one in claimed} == {slow.hook.pk: 4, quick.hook.pk: 4}


def test_a_receiver_that_does_not_answer_keeps_only_its_own_place(personas, hook):
    """The others are sent all they have while one is waited for, not a few each time that it has answered."""
    hook(name="Slow", url="https://slow.example.org/")
    submitted(personas)
    outbox_turn(now=NOON)
    hook("operator", "acme/research", name="Quick")
    for _ in range(2 * AT_ONCE):
        submitted(personas)
    outbox_turn(now=NOON)
    Delivery.objects.filter(hook__name="Slow").exclude(event=Delivery.objects.earliest("pk").event).delete()
    others, all_sent, waited = [], threading.Event(), []

    def send(url, *_):
        if "slow" in url:
            waited.append(all_sent.wait(20))
        else:
            others.append(url)
            if len(others) == 2 * AT_ONCE:
                all_sent.set()
        return GOOD

    assert deliveries_turn(clock=Clock(), rng=random.Random(1), send=send) == 2 * AT_ONCE + 1
    assert waited == [True]
    assert not Delivery.objects.exclude(state="delivered").exists()


def test_a_test_goes_out_also_where_it_is_paused(personas, hook, turn):
    made = hook().hook
    access = personas.access("team_lead")
    hook_change(access=access, hook=made, state="paused", now=NOON)

    hook_test(access=access, hook=made, now=NOON)
    sent = turn()

    assert [json.loads(body)["kind"] for _, body, _ in sent] == ["test"]
    assert AuditEntry.objects.filter(action="webhook.test").count() == 1


def test_tests_go_out_one_at_a_time_and_each_is_tried_once(personas, hook, turn):
    made, access = hook().hook, personas.access("team_lead")
    hook_test(access=access, hook=made, now=NOON)
    with pytest.raises(Conflict, match="on its way already"):
        hook_test(access=access, hook=made, now=NOON)
    hook_test(access=access, hook=hook(name="Another").hook, now=NOON)

    assert len(turn(BAD)) == 2
    assert turn(BAD, NOON + timedelta(hours=2)) == []
    assert set(Delivery.objects.values_list("state", "fault")) == {("parked", BAD.fault)}
    hook_test(access=access, hook=made, now=NOON)
    assert len(turn()) == 1


def test_a_message_sent_again_has_an_id_of_its_own_and_the_same_event(personas, hook, turn):
    hook()
    submitted(personas)
    outbox_turn(now=NOON)
    turn()
    first = Delivery.objects.get()
    access = personas.access("team_lead")

    again = delivery_repeat(access=access, delivery=first, now=NOON)
    with pytest.raises(Conflict):
        delivery_repeat(access=access, delivery=first, now=NOON)
    sent = turn()

    assert again.public_id != first.public_id
    assert (sent[0][1], sent[0][2]["Gpufleet-Event-Id"]) == (first.body.encode(), first.event)


def test_a_secret_that_is_no_longer_the_one_that_was_shown_signs_nothing(personas, hook, receiver, settings):
    new = hook(url=receiver.url)
    settings.SECRET_KEY = "x" * 60
    submitted(personas)
    outbox_turn(now=NOON)

    deliveries_turn(clock=Clock(), rng=random.Random(1))
    assert receiver.calls == []
    assert "key has changed" in Delivery.objects.get().fault

    fresh = hook_secret(access=personas.access("team_lead"), hook=new.hook)
    later = Clock()
    later.now = NOON + timedelta(minutes=1)
    deliveries_turn(clock=later, rng=random.Random(1))
    assert fresh.secret != new.secret
    assert len(receiver.calls) == 1


def test_a_removed_one_is_sent_nothing(personas, hook, turn):
    made = hook().hook
    submitted(personas)
    outbox_turn(now=NOON)
    hook_remove(access=personas.access("team_lead"), hook=made, now=NOON)

    assert turn() == []
    assert list(hooks_managed(personas.access("superuser"))) == []
    submitted(personas)
    assert Happening.objects.count() == 0


def test_a_private_address_that_a_name_has_got_since_is_refused_when_it_is_sent(personas, hook, monkeypatch):
    """What is checked when it is typed in is checked again each time."""
    hook()
    submitted(personas)
    outbox_turn(now=NOON)
    monkeypatch.setattr("socket.getaddrinfo", lambda host, port, **_: [(2, 1, 6, "", ("169.254.169.254", port))])

    deliveries_turn(clock=Clock(), rng=random.Random(1))

    assert "169.254.169.254 is not a public address" in Delivery.objects.get().fault
