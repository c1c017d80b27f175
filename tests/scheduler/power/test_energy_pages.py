"""What people are shown of energy rates and of jobs that are deferred by them: pages, the API, and who sees prices."""

from datetime import timedelta

import pytest

from gpufleet.core.times import now
from quotas.models import QuotaShare
from scheduler.models import EnergyRate, Job
from scheduler.presenters.energy import deferred_told, energy_charts
from scheduler.selectors.energy import Deferred, Tariffs
from scheduler.services.energy import rate_set
from scheduler.services.forecasts import grounds
from scheduler.services.forecasts.energy import rate_preview
from scheduler.services.jobs.submission import submission_create
from tests import builders
from tests.scheduler.loop.worlds import H100

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
PATH = "acme/research/nlp"


@pytest.fixture
def begun(personas):
    """The full hour at which all begins: a cheap time comes in four hours."""
    pool = builders.pool()
    builders.node("n1", gpus=8, pool=pool)
    for path in ("acme", "acme/research", PATH):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=8000)
    start = now().replace(minute=0, second=0, microsecond=0)
    operator = personas.access("operator")
    rate_set(access=operator, given={"price_micros": 240_000, "starts_at": start, "note": "By day"}, now=now())
    rate_set(access=operator, given={"price_micros": 110_000, "starts_at": start + 4 * HOUR, "ends_at": start + 9 * HOUR}, now=now())
    grounds.GROUNDS.forget()
    return start


def described(begun, **said):
    usual = {"name": "nightly", "quota": PATH, "gpus": 8, "estimate_s": 7200, "deadline": (begun + 20 * HOUR).isoformat(), "defer": "price"}
    return usual | said


@pytest.fixture
def deferred(begun, personas):
    access = personas.access("submitter")
    return submission_create(access=access, description=described(begun), now=now(), actor=access.actor)[0]


@pytest.mark.parametrize(("who", "sees"), [("superuser", True), ("team_lead", True), ("submitter", False)])
def test_the_fit_says_the_hour_before_it_happens_and_prices_to_who_may_see_them(begun, personas, who, sees):
    answer = personas.client(who).post("/api/v1/fit", described(begun), content_type="application/json")

    assert answer.status_code == 200, answer.content.decode()
    fit = answer.json()
    found = fit["deferral"]
    assert fit["verdict"] == "later"
    assert fit["at"] == found["to"]
    assert (fit["changes"], fit["places"], fit["others"], fit["reasons"]) == ([], [], [], [])
    assert found["to"].startswith(f"{begun + 4 * HOUR:%Y-%m-%dT%H:%M:%S}")
    assert (found["price_now_micros"], found["price_micros"], found["saved_micros"]) == ((240_000, 110_000, 1_456_000) if sees else (None,) * 3)
    assert found["text"] == ("$0.11 instead of $0.24 per kWh; saves about $1.46 (11.2 kWh)." if sees else "It takes about 11.2 kWh.")
    assert not Job.objects.exists()


def test_a_job_that_is_held_back_anyway_is_told_no_hour(begun, personas):
    answer = personas.client("submitter").post("/api/v1/fit", described(begun, hold=True), content_type="application/json")

    assert answer.json()["deferral"] is None


@pytest.mark.parametrize(("who", "sees"), [("superuser", True), ("submitter", False)])
def test_the_page_of_the_job_says_until_when_and_what_it_saves(deferred, personas, who, sees):
    page = personas.client(who).get(f"/jobs/{deferred.public_id}/").content.decode()

    assert "Deferred to <strong><time" in page
    assert "for a lower price of energy" in page
    assert ("$0.24" in page) is sees
    assert "Start now" in page
    told = personas.client(who).get(f"/api/v1/jobs/{deferred.public_id}").json()
    assert (told["defer"], told["deferral"]["saved_micros"]) == ("price", 1_456_000 if sees else None)
    why = personas.client(who).get(f"/api/v1/jobs/{deferred.public_id}/why").json()
    assert [one["code"] for one in why["reasons"]] == ["deferred"]


def test_its_owner_starts_it_now_and_others_may_not(deferred, personas):
    address = f"/api/v1/jobs/{deferred.public_id}/start-now"
    assert personas.client("viewer").post(address, content_type="application/json").status_code == 403
    page = personas.client("submitter").post(f"/jobs/{deferred.public_id}/start-now/", {}, follow=True)
    assert "no longer deferred" in page.content.decode()
    deferred.refresh_from_db()
    assert deferred.deferred_to <= now()
    assert "Start now" not in page.content.decode()
    assert personas.client("submitter").post(address, content_type="application/json").status_code == 409


def test_the_page_of_power_shows_rates_and_hides_prices(deferred, personas):
    seen = personas.client("operator").get("/power/").content.decode()
    assert "$0.11" in seen
    assert "1 job is deferred now. By estimate it saves $1.46." in seen

    hidden = personas.client("viewer").get("/power/").content.decode()
    assert "By day" in hidden
    assert "$0.11" not in hidden
    assert "Price of a kWh, next 48 hours" not in hidden
    told = personas.client("viewer").get("/api/v1/energy").json()
    assert [one["price_micros"] for one in told["rates"]] == [None, None]


def test_a_rate_is_looked_at_before_it_is_written(deferred, begun, personas):
    oona, rate = personas.client("operator"), EnergyRate.objects.get(price_micros=110_000)
    form = {"pool": "", "price": "0.25", "start": f"{begun + 4 * HOUR:%Y-%m-%dT%H:%M}", "zone": "UTC", "revision": rate.revision}
    looked = oona.post(f"/power/rates/{rate.public_id}/", form | {"do": "look"}).content.decode()
    assert "1 job would no longer be deferred." in looked
    unclear = oona.post(f"/power/rates/{rate.public_id}/", form | {"do": "look", "zone": "Mars/Base"}).content.decode()
    assert "Time zone: Name a time zone such as" in unclear[unclear.index('id="change-preview"') :]
    rate.refresh_from_db()
    assert rate.price_micros == 110_000

    assert oona.post(f"/power/rates/{rate.public_id}/", form | {"do": "write"}).status_code == 302
    rate.refresh_from_db()
    assert (rate.price_micros, rate.ends_at, rate.revision) == (250_000, None, 2)
    assert oona.post(f"/power/rates/{rate.public_id}/", form | {"do": "write"}).status_code == 409


def test_without_a_rate_its_jobs_would_be_deferred_elsewhere(deferred, personas):
    rate = EnergyRate.objects.get(price_micros=110_000)
    seen = rate_preview(access=personas.access("operator"), rate=None, instead_of=rate, now=now())

    assert (seen.deferred, seen.moved, seen.freed) == (1, 0, 1)


def test_the_chart_of_prices_goes_in_steps_and_has_a_point_at_each_change(begun, personas):
    change = begun + 5 * HOUR + timedelta(minutes=7)
    rate_set(access=personas.access("operator"), given={"price_micros": 90_000, "starts_at": change, "ends_at": change + HOUR / 10}, now=now())
    (shown,) = energy_charts(Tariffs(now()), sees=True)

    (line,) = shown.chart.figure["data"]
    assert line["line"]["shape"] == "hv"
    at = [moment for moment, *_ in shown.chart.rows]
    assert {begun + 4 * HOUR, change, change + HOUR / 10} <= set(at)
    prices = dict(zip(at, (row[1] for row in shown.chart.rows), strict=True))
    assert (prices[change], prices[change + HOUR / 10]) == (0.09, 0.11)


def test_savings_are_summed_in_a_sentence():
    assert deferred_told(Deferred(0, 0, 0)) == ""
    assert deferred_told(Deferred(2, 4_100_000, 3300)) == "2 jobs are deferred now. By estimate they save $4.10 and 3.3 kg CO2."
    assert deferred_told(Deferred(1, None, 0)) == "1 job is deferred now."
