"""The pages of webhooks and notices, as their people see them; what strangers wrote stays inert."""

import re
from datetime import timedelta
from html import unescape

import pytest

from gpufleet.core.models import AuditEntry
from scheduler.models import Delivery, Notice, NoticeChoices, Sending, Webhook
from tests import builders
from tests.builders import NOON

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def lead(personas):
    return personas.client("team_lead")


def test_webhooks_are_listed_in_every_state(personas, lead):
    node = personas.nodes[TEAM]
    builders.webhook(node, name="Fine")
    builders.webhook(node, name="Ill", failing_since=NOON)
    builders.webhook(node, name="Off", state="disabled", failing_since=NOON, disabled_at=NOON, kinds=["job.failed"] * 4)

    page = lead.get("/webhooks/").content.decode()

    assert all(word in page for word in ("Fine", "Failing", "Switched off", "4 kinds of events"))
    assert "Fine" in lead.get("/webhooks/?format=csv").getvalue().decode()


def test_a_secret_is_shown_once(personas, lead):
    facts = {"node": personas.nodes[TEAM].public_id, "name": "Chat", "url": "https://hooks.example.org/x", "kinds": ["job.failed"]}

    made = lead.post("/webhooks/new/", facts)

    assert "whs_" in made.content.decode()
    assert made["Cache-Control"] == "no-store"
    hook = Webhook.objects.get()
    pages = [f"/webhooks/{hook.public_id}/", f"/webhooks/{hook.public_id}/edit/", "/webhooks/", "/webhooks/?format=csv"]
    assert not any("whs_" in lead.get(page).content.decode() for page in pages if "csv" not in page)


def test_what_a_receiver_answered_is_only_text(personas, lead):
    hook = builders.webhook(personas.nodes[TEAM], name=SCRIPT)
    delivery = builders.delivery(hook, excerpt=SCRIPT, fault=SCRIPT, body='{"a": "' + SCRIPT + '"}')

    for path in ("/webhooks/", f"/webhooks/{hook.public_id}/", f"/webhooks/{hook.public_id}/{delivery.public_id}/"):
        page = lead.get(path).content.decode()
        assert SCRIPT not in page
        assert "&lt;script&gt;" in page


def test_a_form_keeps_what_was_typed_and_says_what_is_wrong(personas, lead):
    facts = {"node": personas.nodes[TEAM].public_id, "name": "Chat", "url": "https://192.168.0.1/x", "kinds": ["job.failed"]}

    answer = lead.post("/webhooks/new/", facts)

    assert answer.status_code == 422
    page = answer.content.decode()
    assert "192.168.0.1 is not a public address" in page
    assert 'value="https://192.168.0.1/x"' in page


def test_a_change_over_another_one_is_refused(personas, lead):
    hook = builders.webhook(personas.nodes[TEAM], revision=2)

    answer = lead.post(f"/webhooks/{hook.public_id}/edit/", {"name": "Other", "url": hook.url, "kinds": ["job.failed"], "revision": 1})

    assert answer.status_code == 409
    assert Webhook.objects.get().name == "Chat"


def test_a_message_is_sent_again_by_a_button(personas, lead):
    hook = builders.webhook(personas.nodes[TEAM])
    first = builders.delivery(hook)

    answer = lead.post(f"/webhooks/{hook.public_id}/{first.public_id}/again/", follow=True)

    assert "It is on its way again" in answer.content.decode()
    assert Delivery.objects.get(again_of=first).state == "waiting"


# Notices


def told(user, times=1, **fields):
    return [Notice.objects.create(**({"user": user, "kind": "failed", "at": NOON, "title": f"train-{n} failed"} | fields)) for n in range(times)]


def test_the_list_is_ones_own_and_marks_what_was_read(personas):
    sam = personas.users["submitter"]
    first, second = told(sam, 2, text=SCRIPT, job="j-1")
    (other,) = told(personas.users["viewer"], title="secret of others")
    client = personas.client("submitter")

    page = client.get("/notifications/").content.decode()
    assert "train-0 failed" in page
    assert "secret of others" not in page
    assert SCRIPT not in page
    assert client.get("/notifications/unread").json()["count"] == 2

    client.post("/notifications/read/", {"id": [first.pk]})
    client.post("/notifications/read/", {"id": [other.pk]})
    assert client.get("/notifications/unread").json()["count"] == 1
    client.post("/notifications/read/", {"all": "1"})
    assert client.get("/notifications/unread").json()["count"] == 0
    second.refresh_from_db()
    other.refresh_from_db()
    assert (second.read_at is not None, other.read_at) == (True, None)


@pytest.mark.parametrize(("kind", "state"), [("started", "running"), ("failed", "failed"), ("finished", "completed"), ("preempted", "preempted")])
def test_a_notice_about_many_jobs_leads_to_them(personas, kind, state):
    """They are on top of the list that it leads to: what happened to them last was that."""
    team = personas.nodes["acme/research/nlp"]
    ended = {"ended_at": NOON} if state in ("failed", "completed") else {}
    many = [builders.job(f"many-{n}", on=team, state=state, state_since=NOON, **ended) for n in range(6)]
    builders.job("older", on=team, state=state, state_since=NOON - timedelta(hours=1), **ended)
    told(personas.users["submitter"], kind=kind, count=6, title=f"6 jobs: {kind}")
    client = personas.client("submitter")

    (href,) = re.findall(r'<a href="(/jobs/\?[^"]+)">6 jobs</a>', client.get("/notifications/").content.decode())
    rows = client.get("/api/v1/jobs" + unescape(href).removeprefix("/jobs/")).json()["items"]
    assert {row["id"] for row in rows[:6]} == {one.public_id for one in many}


def test_a_bell_does_not_count_for_ever(personas, django_assert_max_num_queries):
    Notice.objects.bulk_create(Notice(user=personas.users["submitter"], kind="failed", at=NOON, title="x") for _ in range(300))
    client = personas.client("submitter")

    assert client.get("/notifications/unread").json()["count"] == 100
    with django_assert_max_num_queries(6):
        client.get("/notifications/unread")


def test_choices_are_kept_and_faults_are_named(personas, settings):
    settings.EMAIL_HOST = ""
    client = personas.client("submitter")
    good = {
        "ways-failed": ["console"],
        "urgent": ["failed"],
        "zone": "Europe/Berlin",
        "quiet_from": "22:00",
        "quiet_until": "07:00",
        "quiet_rule": "drop",
    }

    assert client.post("/notifications/settings/", good | {"seen": "0"}).status_code == 302
    row = NoticeChoices.objects.get()
    assert (row.ways["failed"], row.ways["started"], row.quiet_from, row.quiet_until, row.urgent) == (["console"], [], 1320, 420, ["failed"])
    assert AuditEntry.objects.filter(action="notices.choose").count() == 1
    page = client.get("/notifications/settings/").content.decode()
    assert 'value="22:00"' in page
    assert "this console sends no mail" in page

    assert client.post("/notifications/settings/", good | {"seen": "0"}).status_code == 409
    bad = client.post("/notifications/settings/", good | {"seen": "1", "quiet_from": "25:00", "zone": "Mars/Olympus", "ways-failed": ["email"]})
    assert bad.status_code == 422
    assert "Write a time such as 22:00" in bad.content.decode()
    bad = client.post("/notifications/settings/", good | {"seen": "1", "zone": "Mars/Olympus", "ways-failed": ["email"]})
    assert "Name a time zone" in bad.content.decode()
    assert "E-mail can&#x27;t be chosen" in bad.content.decode()


def test_every_fault_of_the_choices_is_on_the_page_in_its_own_words(personas):
    sent = {"zone": "UTC", "quiet_rule": "shout", "urgent": ["bored"], "ways-failed": ["pigeon"], "ways-bored": ["console"], "seen": "0"}

    answer = personas.client("submitter").post("/notifications/settings/", sent)

    page = unescape(answer.content.decode())
    assert answer.status_code == 422
    assert "Choose “Hold it back and send it as one when they are over” (hold) or “Leave it out” (drop)." in page
    assert "The kinds are started" in page
    assert "The ways are console" in page
    assert "There is no such kind" in page
    assert NoticeChoices.objects.count() == 0


def test_the_log_names_ways_as_the_choices_do(personas):
    sam = personas.users["submitter"]
    for way in ("email", "webhook"):
        Sending.objects.create(notice=told(sam)[0], user=sam, way=way, due_at=NOON)

    page = personas.client("submitter").get("/notifications/settings/").content.decode()

    assert ">E-mail</td>" in page
    assert ">Own webhook</td>" in page


def test_of_a_test_in_the_console_no_log_is_promised(personas, settings):
    settings.EMAIL_HOST = "mail.example.org"
    client, sam = personas.client("submitter"), personas.users["submitter"]

    page = client.post("/notifications/test/", follow=True).content.decode()
    assert "A test is on its way: console." in page
    assert "in the log below" not in page
    client.post("/notifications/read/", {"all": "1"})

    NoticeChoices.objects.create(user=sam, ways={"failed": ["email"]})
    assert "in the log below" in client.post("/notifications/test/", follow=True).content.decode()


def test_a_second_test_of_a_webhook_is_refused_while_one_waits(personas, lead):
    hook = builders.webhook(personas.nodes[TEAM])
    lead.post(f"/webhooks/{hook.public_id}/test/")

    answer = lead.post(f"/webhooks/{hook.public_id}/test/", follow=True)

    assert "A test is on its way already" in answer.content.decode()
    assert Delivery.objects.count() == 1


def test_ones_own_webhook_shows_its_secret_once_and_can_be_removed(personas):
    client = personas.client("submitter")

    made = client.post("/notifications/webhook/", {"url": "https://hooks.example.org/me"})
    assert "whs_" in made.content.decode()
    moved = client.post("/notifications/webhook/", {"url": "https://hooks.example.org/other"}, follow=True)
    assert "whs_" not in moved.content.decode()
    assert "hooks.example.org/other" in moved.content.decode()
    bad = client.post("/notifications/webhook/", {"url": "https://10.0.0.1/"})
    assert "not a public address" in bad.content.decode()

    client.post("/notifications/webhook/", {"remove": "1", "url": ""})
    assert Webhook.objects.filter(removed_at__isnull=True).count() == 0


def test_a_job_is_followed_from_its_page(personas):
    job = builders.job(on=personas.nodes[TEAM], owner=personas.users["submitter"])
    client = personas.client("viewer")

    assert "Follow" in client.get(f"/jobs/{job.public_id}/").content.decode()
    client.post(f"/jobs/{job.public_id}/follow/", {"to": "yes"})
    assert "Unfollow" in client.get(f"/jobs/{job.public_id}/").content.decode()
    client.post(f"/jobs/{job.public_id}/follow/", {"to": "no"})

    assert job.followers.count() == 0
    assert "Follow" not in personas.client("submitter").get(f"/jobs/{job.public_id}/").content.decode(), "the owner is told anyway"
