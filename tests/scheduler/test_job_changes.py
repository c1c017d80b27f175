"""Changing, restarting and saving a job on its pages: what its state allows, faults at their fields, nothing over somebody else's change."""

import html
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import QuotaShare
from scheduler.models import Attempt, Job, JobEvent, JobState, Order, OrderKind
from scheduler.services.forecasts import grounds
from scheduler.services.jobs.jobs import job_hold, job_stop
from scheduler.services.jobs.prices import price_of
from tests.builders import NOON, attempt, job, node, placement, rate
from tests.scheduler.loop.worlds import H100
from tests.scheduler.test_undo import UNDO, undone

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"
ELASTIC = {"roles": [{"name": "worker", "min": 2, "max": 4, "gpus": 1}], "grace_s": 30}


@pytest.fixture
def mine(personas):
    node(gpus=4)
    return job(
        "mine", on=personas.nodes[TEAM], owner=personas.users["submitter"], spec=ELASTIC, gpus_milli=2000, labels={"run": "1"}, limit_seconds=7200
    )


@pytest.fixture
def gang(personas):
    found = job("gang", on=personas.nodes[TEAM], owner=personas.users["submitter"], state=JobState.RUNNING, spec=ELASTIC, gpus_milli=2000)
    run = attempt(found, running_at=now())
    for number, gpu in enumerate(node(gpus=2).gpus.order_by("index")):
        placement(found, gpu, attempt=run, worker=number)
    return found


@pytest.fixture
def client(personas):
    return personas.client("submitter")


def page(client, name, of):
    answer = client.get(reverse(name, args=[of.public_id]))
    assert answer.status_code == 200
    return answer.content.decode()


def fields_in(text):
    """What the page's form would send if nothing were typed."""
    form = text[text.index("<main") : text.index("</main>")]
    found = {}
    for tag in re.findall(r"<input\b[^>]*>", form):
        attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        found[attributes["name"]] = html.unescape(attributes.get("value", ""))
    for name, text_ in re.findall(r'<textarea[^>]*? name="([^"]+)"[^>]*>(.*?)</textarea>', form, re.DOTALL):
        found[name] = html.unescape(text_)
    return found


def send(client, name, of, status, fields=(), **typed):
    answer = client.post(reverse(name, args=[of.public_id]), {**dict(fields), **{path.replace("__", "."): text for path, text in typed.items()}})
    assert answer.status_code == status, answer.content.decode()
    return html.unescape(answer.content.decode())


def fresh(of):
    return Job.objects.get(pk=of.pk)


def fault_at(text, path):
    """What stands at a field."""
    field = text[text.index(f'data-path="{path}"') :]
    told = field[field.index("data-faults") : field.index("</div>", field.index("data-faults"))]
    return re.findall(r'<p class="error">(.*?)</p>', told)


def test_what_is_typed_over_is_changed_and_nothing_else(client, mine):
    fields = fields_in(page(client, "job_change", mine))
    shown = {"priority": "50", "limit_s": "2h", "labels": "run=1", "roles[0].min": "2", "roles[0].max": "4"}
    assert shown.items() <= fields.items()

    typed = {"priority": "70", "limit_s": "", "estimate_s": "90m", "deadline": "2190-01-01T00:00:00Z", "labels": "run=2\r\nkind=x"}
    answer = client.post(reverse("job_change", args=[mine.public_id]), fields | typed | {"roles[0].max": "3", "reason": "Sooner."}, follow=True)

    found = fresh(mine)
    assert (found.priority, found.limit_seconds, found.estimate_seconds, found.labels) == (70, None, 5400, {"run": "2", "kind": "x"})
    assert (found.spec["roles"][0]["min"], found.spec["roles"][0]["max"], found.name) == (2, 3, "mine")
    event = JobEvent.objects.filter(job=mine).latest("id")
    assert event.detail["changed"] == ["deadline", "estimate_s", "labels", "limit_s", "priority", "workers"]
    assert AuditEntry.objects.get(action="job.edit").reason == "Sooner."
    told = html.unescape(answer.content.decode())
    assert "mine is changed: time limit 2h → none, priority 50 → 70, estimated run time none → 90m" in told
    assert "workers at most 4 → 3" in told


def test_each_fault_stands_at_its_field_and_nothing_typed_is_lost(client, mine):
    fields = fields_in(page(client, "job_change", mine))
    wrong = {"priority": "high", "limit_s": "0", "deadline": "tomorrow", "roles[0].min": "", "name": " ", "reason": "x" * 281, "cost_centre": "R&D"}
    told = send(client, "job_change", mine, 422, fields | wrong)

    again = fields_in(told)
    assert {path: again[path] for path in wrong} == wrong
    assert fault_at(told, "priority") == ["A whole number is wanted."]
    assert fault_at(told, "limit_s") == ["At least 1s."]
    assert fault_at(told, "deadline") == ["A time is wanted, such as 2026-11-20T09:00:00Z."]
    assert fault_at(told, "name") == ["It is empty."]
    assert fault_at(told, "roles[0].min") == ["A whole number is wanted."]
    assert fault_at(told, "cost_centre") == []
    assert "At most 280 characters." in told
    assert fresh(mine).revision == mine.revision

    past = send(client, "job_change", mine, 422, fields, deadline="2020-01-01T00:00:00Z")
    assert fault_at(past, "deadline") == ["It lies in the past."]
    upside_down = send(client, "job_change", mine, 422, fields | {"roles[0].min": "9"})
    assert fault_at(upside_down, "roles[0].min"), "what the engine says of the range"
    assert "No changes given" in send(client, "job_change", mine, 422, fields)


def test_what_somebody_else_changed_is_shown_and_not_written_over(client, personas, mine):
    fields = fields_in(page(client, "job_change", mine))
    other = personas.client("team_lead")
    send(other, "job_change", mine, 302, fields_in(page(other, "job_change", mine)), limit_s="4h", priority="60")

    told = send(client, "job_change", mine, 409, fields, priority="70", reason="Mine first.")

    assert "It has changed since you opened this page." in told
    again = fields_in(told)
    assert (again["priority"], again["limit_s"], again["reason"]) == ("70", "4h", "Mine first.")
    assert "was 60" in told
    assert (fresh(mine).priority, fresh(mine).limit_seconds) == (60, 14_400)
    send(client, "job_change", mine, 302, again)
    assert (fresh(mine).priority, fresh(mine).limit_seconds) == (70, 14_400), "what was not touched stays as the other one set it"


def test_a_form_that_says_no_revision_changes_nothing(client, mine):
    send(client, "job_change", mine, 409, priority="70")
    send(client, "job_change", mine, 409, priority="70", revision="one")
    assert fresh(mine).priority == 50


def test_only_what_may_be_changed_as_it_stands_is_offered(client, mine, gang):
    assert {"not_before", "deadline"} <= fields_in(page(client, "job_change", mine)).keys()
    fields = fields_in(page(client, "job_change", gang))
    assert not {"not_before", "deadline"} & fields.keys()

    refused = send(client, "job_change", gang, 422, fields | {"roles[0].min": "3"})
    assert fault_at(refused, "roles[0].min") == ["It runs with 2, which must lie within the new range."]
    send(client, "job_change", gang, 302, fields | {"roles[0].min": "1"})
    assert fresh(gang).spec["roles"][0]["min"] == 1


def test_a_job_that_started_meanwhile_says_what_is_too_late(client, mine):
    fields = fields_in(page(client, "job_change", mine))
    Job.objects.filter(pk=mine.pk).update(state=JobState.RUNNING, revision=mine.revision + 1)

    told = send(client, "job_change", mine, 409, fields, deadline="2190-01-01T00:00:00Z", priority="70")

    assert "Deadline (UTC) can't be changed any more." in told
    assert fields_in(told)["priority"] == "70"


def test_what_has_ended_can_not_be_changed(client, mine):
    fields = fields_in(page(client, "job_change", mine))
    job_stop(job=mine, to=JobState.CANCELLED, outcome="cancelled", cause="Test", now=now())

    assert "It has ended since" in send(client, "job_change", mine, 409, fields, priority="70")
    ended = page(client, "job_change", mine)
    assert "nothing of it can be changed" in ended and 'name="priority"' not in ended
    assert "/edit/" not in page(client, "job", mine)


def test_who_may_not_steer_it_changes_nothing(personas, mine):
    hers = job("hers", on=personas.nodes["acme/product/search"])
    for name in ("job_change", "job_restart", "job_save"):
        send(personas.client("viewer"), name, mine, 403, revision="1", priority="70")
        send(personas.client("submitter"), name, hers, 404, revision="1", priority="70")
    for name in ("job_change", "job_restart"):
        assert personas.client("viewer").get(reverse(name, args=[mine.public_id])).status_code == 403
    seen = page(personas.client("viewer"), "job", mine)
    assert "/edit/" not in seen and "/restart/" not in seen and "/checkpoint/" not in seen


def test_labels_are_shown_as_text_and_kept_where_a_line_can_not_hold_them(client, mine):
    Job.objects.filter(pk=mine.pk).update(labels={"run": '"><script>alert(1)</script>'}, name="<img src=x onerror=alert(2)>")
    text = page(client, "job_change", mine)
    assert "<script>alert(1)" not in text and "<img src=x" not in text
    assert fields_in(text)["labels"] == 'run="><script>alert(1)</script>'
    typed = {"revision": "1", "labels": "<script>alert(3)</script>", "reason": '"><script>'}
    faulty = client.post(reverse("job_change", args=[mine.public_id]), typed)
    assert faulty.status_code == 422
    assert b"<script>alert(3)" not in faulty.content and b'"><script>' not in faulty.content

    Job.objects.filter(pk=mine.pk).update(labels={"note": "two\nlines=1"})
    fields = fields_in(page(client, "job_change", mine))
    assert "labels" not in fields
    send(client, "job_change", mine, 302, fields, priority="70")
    assert fresh(mine).labels == {"note": "two\nlines=1"}


def test_what_runs_saves_its_work_and_goes_on(client, gang, mine):
    assert "Save now" in page(client, "job", gang)
    send(client, "job_save", gang, 302)

    assert Order.objects.filter(kind=OrderKind.SIGNAL, payload={"signal": "checkpoint"}).count() == 1
    assert fresh(gang).state == JobState.RUNNING
    assert "is saving a checkpoint and keeps running" in page(client, "job", gang)
    assert "Save now" not in page(client, "job", mine)
    assert "does not run" in send(client, "job_save", mine, 409)
    assert "at most 280 characters" in send(client, "job_save", gang, 422, reason="x" * 281)
    Job.objects.filter(pk=gang.pk).update(spec=gang.spec | {"checkpoint": None})
    assert "saves nothing" in send(client, "job_save", gang, 409)
    assert "Save now" not in page(client, "job", gang)
    Job.objects.filter(pk=gang.pk).update(spec=gang.spec)
    Job.objects.filter(pk=gang.pk).update(spec=ELASTIC | {"checkpoint": None})
    assert "Save now" not in page(client, "job", gang), "it said that it can't"


def test_what_runs_is_restarted_once_however_often_it_is_pressed(client, gang):
    button = reverse("job_restart", args=[gang.public_id])
    assert button in page(client, "job", gang)
    asked = page(client, "job_restart", gang)
    assert "No complete checkpoint was reported" in asked
    assert ">Back to the job</a>" in asked
    assert ">Cancel</a>" not in asked
    send(client, "job_restart", gang, 409, reason="Without a revision.")
    assert fresh(gang).state == JobState.RUNNING
    fields = fields_in(asked) | {"reason": "Stuck."}
    send(client, "job_restart", gang, 302, fields)

    assert fresh(gang).state == JobState.CHECKPOINTING
    leaving = Attempt.objects.get(job=gang)
    assert (leaving.stop_to, leaving.stop_cause) == ("preempted", "Stuck.")
    told = send(client, "job_restart", gang, 409, fields)
    assert "It has changed since you opened this page." in told
    assert Order.objects.filter(kind=OrderKind.SIGNAL).count() == 1
    assert button not in page(client, "job", gang)


def test_what_a_restart_comes_to_is_told_before(personas, gang):
    """The job itself, who starts on its GPUs, what is done again, and who hears of it."""
    rate(H100, since=now() - timedelta(days=1), micros=2_000_000)
    waits = job("waits", on=personas.nodes["acme/research/vision"], submitted_at=now() - timedelta(minutes=5), gpus_milli=1000)
    Attempt.objects.filter(job=gang).update(started_at=now() - timedelta(hours=3), running_at=now() - timedelta(hours=3))
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(now())

    told = page(personas.client("superuser"), "job_restart", gang)
    preview = html.unescape(told[told.index('id="change-preview"') :])

    assert "Unless it saves its work now, it begins anew and repeats 6.0 GPU-hours, worth $12.00 at the guaranteed rate." in preview
    assert f"2 GPUs come free after the last worker exits: 2 {H100}. At the guaranteed rate they cost $4.00 an hour." in preview
    assert "The owner of 1 job is notified." in preview
    assert "Saves its work within" in preview and waits.name in preview
    unpriced = page(personas.client("submitter"), "job_restart", gang)
    assert "repeats 6.0 GPU-hours." in unpriced and "No owner is notified." in unpriced, "it is their own"


@pytest.mark.parametrize(
    ("spec", "said"),
    [({"grace_s": 0}, "Is killed at once and waits"), ({"checkpoint": None, "grace_s": 60}, "Ends within 60 seconds and waits")],
)
def test_a_restart_that_can_save_nothing_promises_no_save(client, gang, spec, said):
    Job.objects.filter(pk=gang.pk).update(spec={**gang.spec, **spec})

    told = page(client, "job_restart", gang)

    assert said in told and "saves its work" not in told.lower()
    assert ("grace period" in told) == bool(spec["grace_s"])


def test_a_role_of_processors_alone_changes_nothing_about_the_price(personas, mine):
    node("n9", gpus=8)
    rate(H100, since=now() - timedelta(days=1), micros=2_000_000)
    driver = {"name": "driver", "min": 1, "cpus": 4}
    worker = {"name": "worker", "min": 2, "max": 4, "gpus": 1, "gpu_types": [H100]}
    mine.spec, mine.gpus_milli = {"roles": [driver, worker]}, 2000

    price = price_of(personas.access("superuser"), mine, mine, now=now())

    assert price is not None and price.hourly[1] == (4_000_000, 8_000_000)


def test_what_is_leaving_for_good_is_not_said_to_restart(client, gang):
    job_stop(job=gang, to=JobState.CANCELLED, outcome="cancelled", cause="Test", now=now())

    assert "is leaving for good" in send(client, "job_restart", gang, 409, revision=str(fresh(gang).revision))
    assert Attempt.objects.get(job=gang).stop_to == "cancelled"


def test_what_has_ended_is_submitted_again_once_for_each_page(client, personas, mine):
    job_stop(job=mine, to=JobState.CANCELLED, outcome="cancelled", cause="Test", now=now())
    fields = fields_in(page(client, "job_restart", mine))
    assert "reason" not in fields, "a new job begins without one"
    for _ in range(2):
        send(client, "job_restart", mine, 302, fields)
    anew = Job.objects.exclude(pk=mine.pk).get()
    assert (anew.name, anew.state, anew.spec["roles"], anew.owner) == ("mine", JobState.QUEUED, mine.spec["roles"], personas.users["submitter"])
    send(client, "job_restart", mine, 302, fields_in(page(client, "job_restart", mine)))
    assert Job.objects.count() == 3


def test_what_waits_is_not_restarted(client, mine):
    job_hold(job=mine, now=NOON)
    assert "/restart/" not in page(client, "job", mine)
    asked = page(client, "job_restart", mine)
    assert "It waits already." in asked
    assert "waits already" in send(client, "job_restart", mine, 409, fields_in(asked))
    assert fresh(mine).state == JobState.QUEUED


def test_a_change_says_what_becomes_of_it_before_it_is_saved_and_is_undone(client, personas, mine):
    """Four GPUs are free: as it waits for eight it can't start, and for two it can. Its preview says so, and writes nothing."""
    spec = {**ELASTIC, "roles": [{**ELASTIC["roles"][0], "min": 8, "max": 8}]}
    Job.objects.filter(pk=mine.pk).update(spec=spec, gpus_milli=8000)
    for path in ("acme", "acme/research", TEAM):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type="H100-SXM-80GB", guaranteed_milli=8000, limit_milli=None)
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(now())
    rate("H100-SXM-80GB", since=NOON, micros=2_500_000)
    fields = fields_in(page(client, "job_change", mine))
    assert "Nothing is changed so far." in page(client, "job_change", mine)
    smaller = fields | {"roles[0].min": "2", "roles[0].max": "2"}

    told = html.unescape(client.post(reverse("job_change", args=[mine.public_id]), smaller | {"preview": "1"}).content.decode())

    assert "Workers at least 8 → 2" in told and "Starts at once" in told and "No owner is notified." in told
    assert "guaranteed rate" not in told, "who submits may see no costs"
    lead = personas.client("team_lead")
    assert "It costs $5.00 an hour at the guaranteed rate; before, $20.00." in previewed(lead, mine, smaller)
    assert "It costs at most $80.00 until its time limit, $40.00 more than before." in previewed(lead, mine, fields | {"limit_s": "4h"})
    assert "Without a time limit its cost is open: $20.00 an hour at the guaranteed rate." in previewed(lead, mine, fields | {"limit_s": ""})
    assert "Its price stays $20.00 an hour at the guaranteed rate." in previewed(lead, mine, fields | {"priority": "70"})
    assert (fresh(mine).gpus_milli, fresh(mine).revision) == (8000, mine.revision)
    wrong = client.post(reverse("job_change", args=[mine.public_id]), fields | {"preview": "1", "limit_s": "soon"})
    assert wrong.status_code == 422
    assert "Time limit: " in html.unescape(wrong.content.decode())

    later = job("later", on=mine.quota, owner=mine.owner, spec=ELASTIC, gpus_milli=2000)
    unread = fields_in(page(client, "job_change", later)) | {"priority": "70", "preview": "1"}
    told = client.post(reverse("job_change", args=[later.public_id]), unread).content.decode()
    assert "The effect on other jobs cannot be computed now." in told and "Starts at once" not in told, "it came after the fleet was read"

    done = client.post(reverse("job_change", args=[mine.public_id]), smaller, follow=True)
    assert fresh(mine).gpus_milli == 2000
    back = undone(client, done).content.decode()
    assert (fresh(mine).gpus_milli, fresh(mine).spec["roles"][0]["min"]) == (8000, 8)
    assert "Undone: mine is changed" in html.unescape(back) and UNDO.search(back) is None


def previewed(client, of, fields):
    answer = client.post(reverse("job_change", args=[of.public_id]), fields | {"preview": "1"})
    assert answer.status_code == 200, answer.content.decode()
    return html.unescape(answer.content.decode())


def test_only_what_says_something_else_counts_as_typed(client, mine):
    """A browser's picker leaves out seconds that are none, and knows no microseconds."""
    Job.objects.filter(pk=mine.pk).update(deadline=datetime(2190, 1, 1, 8, 0, 0, 250_125, tzinfo=UTC), not_before=NOON + timedelta(days=3650))
    fields = fields_in(page(client, "job_change", mine))
    assert fields["deadline"] == "2190-01-01T08:00:00.250"
    fields |= {"not_before": fields["not_before"].removesuffix(":00")}

    assert "Nothing is changed so far." in previewed(client, mine, fields | {"reason": "None."})
    assert "Estimated run time none → 3h" in previewed(client, mine, fields | {"estimate_s": "3h"}), "also what was empty is told"
    send(client, "job_change", mine, 302, fields, priority="70")
    event = JobEvent.objects.filter(job=mine).latest("id")
    assert event.detail["changed"] == ["priority"]


def test_an_address_with_values_shows_the_page_at_once_and_has_their_effect_fetched(client, mine):
    address = reverse("job_change", args=[mine.public_id])
    plain = client.get(f"{address}?utm=1")
    assert plain.status_code == 200 and 'hx-trigger="input delay:600ms"' in plain.content.decode()
    told = client.get(f"{address}?priority=70").content.decode()
    assert fields_in(told)["priority"] == "70" and 'hx-trigger="load, input delay:600ms"' in told
    assert "What your change does is shown here." in told and "Priority 50" not in told


def test_a_job_that_was_evicted_once_is_previewed_too_and_its_name_plans_nothing(client, mine):
    spec = {**ELASTIC, "roles": [{**ELASTIC["roles"][0], "min": 8, "max": 8}]}  # more than there is, so it waits
    Job.objects.filter(pk=mine.pk).update(evictions=1, last_evicted_at=NOON, spec=spec, gpus_milli=8000)
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(now())
    fields = fields_in(page(client, "job_change", mine))

    for typed in ({"priority": "70"}, {"name": "other"}):
        told = previewed(client, mine, fields | typed)
        assert "cannot be computed" not in told and "No owner is notified." in told
    assert "decided" in grounds.GROUNDS._serving.answers
    grounds.GROUNDS._serving.answers.clear()
    previewed(client, mine, fields | {"labels": "run=9"})
    assert not grounds.GROUNDS._serving.answers, "what no plan depends on is not planned"
