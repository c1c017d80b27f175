"""The pages of schedules."""

from gpufleet.core.models import AuditEntry
from quotas.models import RoleBinding
from scheduler.models import Job, Schedule, ScheduleRun
from tests import builders
from tests.scheduler.schedules.making import TEAM, at, make

FORM = {"name": "nightly", "cron": "30 2 * * *", "zone": "Europe/Berlin", "overlap": "skip", "catch_up": "last"}


def test_a_schedule_is_written_and_changed_on_a_page(personas, fleet):
    client = personas.client("submitter")
    assert "GPUFLEET_DUE_AT" in client.get("/schedules/new/").content.decode()
    form = FORM | {"description": f"quota: {TEAM}\r\ngpus: 1\r\n", "start_within_s": "3600", "ends_at": "2040-01-01T00:00:00Z"}
    answer = client.post("/schedules/new/", form, follow=True)

    schedule = Schedule.objects.get()
    page = f"/schedules/{schedule.public_id}/"
    assert answer.redirect_chain[-1][0] == page
    assert (schedule.ends_at, schedule.start_within_s) == (at("2040-01-01T00:00"), 3600)
    html = answer.content.decode()
    assert "30 2 * * *" in html and "Europe/Berlin" in html and "at most" in html and html.count("</time><br>") == 4
    edit = client.get(f"{page}edit/").content.decode()
    assert 'value="2040-01-01T00:00:00"' in edit and f"quota: {TEAM}" in edit
    assert '<option value="week" selected>' in edit and 'value="02:30"' in edit
    due = client.post(f"{page}edit/", form | {"_look": "1", "cron-every": "week", "cron-days": "SUN", "cron-time": "04:00"}).content.decode()
    assert "0 4 * * SUN" in due and due.count("<li>Sun ") == 3
    Schedule.objects.update(starts_at=at("2020-01-01T00:00"), paused_at=at("2026-01-01T00:00"))
    old = form | {"_look": "1", "starts_at": "2020-01-01T00:00", "cron-every": "month", "cron-day": "1", "cron-time": "04:00"}
    late = personas.client("operator").post(f"{page}edit/", old)
    assert (late.status_code, late.content.count(b"<li>")) == (200, 3) and b" 2020" not in late.content, "who may steer it sees what comes"
    Schedule.objects.update(starts_at=None, paused_at=None)
    chosen = {"cron-every": "week", "cron-days": ["MON", "TUE"], "cron-time": "02:45"}
    changed = form | chosen | {"revision": "1", "ends_at": "2040-01-01T00:00", "description": f"quota: {TEAM}\ngpus: 2\n"}
    assert client.post(f"{page}edit/", changed).status_code == 302
    assert client.post(f"{page}edit/", changed).status_code == 409
    schedule.refresh_from_db()
    assert (schedule.cron, schedule.description) == ("45 2 * * MON,TUE", {"name": "nightly", "gpus": 2})


def test_who_manages_jobs_changes_its_times_and_sees_no_field_for_the_job(personas, fleet):
    schedule, client = make(personas), personas.client("team_lead")
    page = f"/schedules/{schedule.public_id}/"
    assert 'name="description"' not in client.get(f"{page}edit/").content.decode()
    assert client.post(f"{page}edit/", FORM | {"revision": "1", "description": "quota: other"}).status_code == 302
    client.post(f"{page}take/")

    schedule.refresh_from_db()
    assert (schedule.cron, schedule.owner) == ("30 2 * * *", personas.users["team_lead"])
    assert schedule.description["launch"] == {"command": ["true"]}
    assert 'name="description"' in client.get(f"{page}edit/").content.decode()


def test_faults_of_the_job_are_told_at_its_field_with_their_line(personas, fleet):
    client = personas.client("submitter")
    answer = client.post("/schedules/new/", FORM | {"cron": "61 2 * * *", "description": f"quota: {TEAM}\ngpus: -1\nlaunch: {{shell: date}}\n"})

    html = answer.content.decode()
    assert answer.status_code == 422
    assert "The minute can&#x27;t be 61." in html and "Line 2, gpus: At least 0." in html
    for text, said in (("a: [", "this is not valid YAML"), ("- a", "Keys with values are wanted"), ("", "required")):
        assert said in client.post("/schedules/new/", FORM | {"description": text}).content.decode()
    half = client.post("/schedules/new/", FORM | {"cron-every": "week", "cron-time": "02:00", "description": f"quota: {TEAM}\ngpus: 1"})
    assert half.status_code == 422 and "Choose a day." in half.content.decode() and '<option value="week" selected>' in half.content.decode()
    assert not Schedule.objects.exists()


def test_a_job_is_repeated_from_its_page(personas, fleet):
    client = personas.client("submitter")
    job = builders.job(
        "evaluate", on=personas.nodes[TEAM], owner=personas.users["submitter"], launch={"command": ["python", "x.py"]}, gpus_milli=1000
    )
    assert f"/schedules/new/?repeat={job.public_id}" in client.get(f"/jobs/{job.public_id}/").content.decode()
    html = client.get(f"/schedules/new/?repeat={job.public_id}").content.decode()

    assert 'value="evaluate"' in html and "x.py" in html
    assert personas.client("viewer").get(f"/schedules/new/?repeat={job.public_id}").status_code == 403


def test_it_is_paused_run_and_removed_on_its_page(personas, fleet):
    schedule, client = make(personas), personas.client("submitter")
    page = f"/schedules/{schedule.public_id}/"

    assert "nightly is paused. What runs goes on." in client.post(f"{page}switch/", {"to": "paused"}, follow=True).content.decode()
    assert "is paused already" in client.post(f"{page}switch/", {"to": "paused"}, follow=True).content.decode()
    assert "nightly goes on." in client.post(f"{page}switch/", {"to": "active"}, follow=True).content.decode()
    assert "nightly is submitted." in client.post(f"{page}run/", follow=True).content.decode()
    html = client.get(page).content.decode()
    assert Job.objects.get().public_id in html and "By hand by Submitter." in html
    lead = personas.client("team_lead")
    assert "nightly is removed." in lead.post(f"{page}remove/", {"reason": "Over"}, follow=True).content.decode()
    assert AuditEntry.objects.get(action="schedule.remove").reason == "Over"


def test_a_run_by_hand_that_is_refused_says_why_and_leaves_no_run(personas, fleet):
    schedule, lead = make(personas), personas.client("team_lead")
    RoleBinding.objects.filter(user=personas.users["submitter"]).delete()
    page = f"/schedules/{schedule.public_id}/run/"

    assert personas.client("submitter").post(page).status_code == 403
    assert "owner: Submitter may not submit" in lead.post(page, follow=True).content.decode()
    assert not ScheduleRun.objects.exists()


def test_what_is_missing_and_what_is_wrong_is_told_in_one_round(personas, fleet):
    form = FORM | {"name": "", "cron": "61 2 * * *", "zone": "Mars", "start_within_s": "soon", "description": f"quota: {TEAM}\ngpus: -1\n"}
    html = personas.client("submitter").post("/schedules/new/", form).content.decode()

    for said in ("This field is required.", "The minute can&#x27;t be 61.", "Name a time zone", "Enter a whole number.", "Line 2, gpus: At least 0."):
        assert html.count(said) == 1, said
