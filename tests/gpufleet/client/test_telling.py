"""Webhooks and notices at a terminal."""

import json

import pytest

from gpufleet.client.calls import Console
from gpufleet.core.times import now
from scheduler.models import Delivery, DeliveryState, Notice, NoticeChoices, Webhook, WebhookState
from tests.builders import NOON, delivery, webhook

pytestmark = pytest.mark.django_db(transaction=True)
TEAM = "acme/research/nlp"
MANAGES = {"who": "operator", "scopes": ("operate",)}
OWN = {"who": "submitter", "scopes": ("submit",)}
ADD = ("webhooks", "add", "Chat", "https://hooks.example.org/x", "--quota", TEAM, "--on", "job.failed", "--on", "job.preempted")


def test_a_webhook_is_made_listed_paused_and_removed(run):
    status, out, _ = run(*ADD, **MANAGES)
    hook = Webhook.objects.get()
    assert status == 0
    assert hook.public_id in out and "Its secret, shown once: whs_" in out
    assert (hook.name, set(hook.kinds)) == ("Chat", {"job.failed", "job.preempted"})

    assert TEAM in run("webhooks", "ls", **MANAGES)[1]
    assert "secret" not in run("webhooks", "ls", "--json", **MANAGES)[1]
    assert run("webhooks", "pause", hook.public_id, **MANAGES)[1].strip() == f"{hook.public_id}  paused"
    assert json.loads(run("webhooks", "ls", "--state", "active", "--json", **MANAGES)[1]) == {"items": []}
    assert run("webhooks", "resume", hook.public_id, **MANAGES)[0] == 0
    assert Webhook.objects.get().state == WebhookState.ACTIVE

    assert run("webhooks", "rm", hook.public_id, "--reason", "Over.", **MANAGES)[0] == 0
    assert Webhook.objects.get().removed_at is not None
    assert run("webhooks", "ls", **MANAGES)[1].strip() == "There are none."
    assert run("webhooks", "rm", hook.public_id, **MANAGES)[0] == 4


def test_what_is_wrong_ends_as_documented(run):
    status, _, err = run(*ADD[:-1], "job.exploded", **MANAGES)
    assert status == 5
    assert "kinds" in err
    assert run("webhooks", "ls", **OWN)[0] == 3
    assert run("webhooks", **MANAGES)[0] == 2
    assert run("webhooks", "explode", **MANAGES)[0] == 2
    assert run("webhooks", "add", "Chat", **MANAGES)[0] == 2


@pytest.mark.parametrize(
    ("became", "status", "said"),
    [
        ({"state": DeliveryState.DELIVERED, "attempts": 1, "status": 200, "duration_ms": 12, "done_at": NOON}, 0, "it answered 200 in 12 ms"),
        ({"attempts": 1, "fault": "it answered 500"}, 1, "not delivered: it answered 500"),
        ({}, 0, "on its way"),
    ],
)
def test_a_test_says_what_became_of_it(run, personas, monkeypatch, became, status, said):
    hook = webhook(personas.nodes[TEAM])
    monkeypatch.setattr("gpufleet.client.telling.PATIENCE_SECONDS", 30 if became else 0)
    console = Console.__init__

    def with_answer(self, place):
        console(self, place, pause=lambda _: Delivery.objects.update(**became))

    monkeypatch.setattr(Console, "__init__", with_answer)

    ended, out, _ = run("webhooks", "test", hook.public_id, **MANAGES)

    assert (ended, said in out) == (status, True), out


def test_a_test_need_not_be_waited_for(run, personas):
    hook = webhook(personas.nodes[TEAM])

    status, out, _ = run("webhooks", "test", hook.public_id, "--no-wait", "--json", **MANAGES)

    assert (status, json.loads(out)["state"]) == (0, "waiting")
    assert run("webhooks", "test", hook.public_id, "--no-wait", **MANAGES)[0] == 5, "the first one has not gone out"


def test_what_a_webhook_was_sent_is_listed_and_sent_again(run, personas):
    hook = webhook(personas.nodes[TEAM])
    first = delivery(hook, state=DeliveryState.PARKED, fault="it answered 500\x1b[2J", status=500)
    delivery(hook)

    out = run("webhooks", "deliveries", hook.public_id, "--state", "parked", **MANAGES)[1]
    assert first.public_id in out and out.count("dl-") == 1
    assert "\x1b" not in out
    assert run("webhooks", "redeliver", hook.public_id, first.public_id, **MANAGES)[0] == 0
    assert Delivery.objects.filter(again_of=first).count() == 1


def test_notices_are_listed_and_marked_as_read(run, personas):
    user = personas.users["submitter"]
    Notice.objects.create(user=user, kind="failed", title="train failed", text="Exit code 1.", at=now())

    out = run("notices", "ls", "--unread", **OWN)[1]
    assert "train failed" in out and "*" in out
    assert run("notices", "read", **OWN)[1].strip() == "1 marked as read."
    assert run("notices", "ls", "--unread", **OWN)[1].strip() == "No notifications."
    assert json.loads(run("notices", "ls", "--json", **OWN)[1])["items"][0]["kind"] == "failed"
    assert run("notices", "log", **OWN)[1].strip() == "Nothing was sent."
    assert run("notices", "read", who="submitter", scopes=("read",))[0] == 3


def test_what_one_is_told_is_chosen_and_what_is_not_named_stays(run, personas):
    assert "started" in run("notices", "set", **OWN)[1]
    assert not NoticeChoices.objects.exists(), "looking changes nothing"

    status, out, err = run("notices", "set", "started=", "--zone", "Europe/Helsinki", "--quiet", "22:00-07:00", "--urgent", "failed", **OWN)
    assert status == 0, err
    assert "Quiet hours 22:00-07:00 Europe/Helsinki" in out and "but for failed" in out
    chosen = NoticeChoices.objects.get()
    assert (chosen.ways["started"], chosen.ways["failed"]) == ([], ["console"])
    assert (chosen.quiet_from, chosen.quiet_until, chosen.zone) == (1320, 420, "Europe/Helsinki")

    assert run("notices", "set", "started=console", "--quiet", "none", "--urgent", "none", **OWN)[0] == 0
    chosen = NoticeChoices.objects.get()
    assert (chosen.ways["started"], chosen.quiet_from, chosen.urgent, chosen.zone) == (["console"], None, [], "Europe/Helsinki")
    for words in (("started",), ("--quiet", "22"), ("--quiet", "25:00-07:00"), ("--quiet", "22:00")):
        assert run("notices", "set", *words, **OWN)[0] == 2, words
    assert run("notices", "set", "exploded=console", **OWN)[0] == 5
    assert run("notices", "test", **OWN)[1].strip() == "Sent by console."
