"""Rate cards: no overlap and no hole, versions, and what is told before a card is active."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.times import millis
from quotas.chargeback.cards import card_activate, card_change, card_check, card_csv, card_draft, lines_read, prices_of
from quotas.chargeback.effects import effects_of
from quotas.chargeback.months import month_close, month_refresh
from quotas.chargeback.pricing import Kind
from quotas.models import CardState, ChargeLine, QuotaShare, RateCard
from quotas.selectors.rates import price_book
from quotas.templatetags.costs import money
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.quotas.chargeback.worlds import used

pytestmark = pytest.mark.django_db
H100 = "H100-SXM-80GB"
DAY = timedelta(days=1)


def line(micros: int = 3_000_000, gpu_type: str = H100, **said: object) -> dict[str, object]:
    return {"gpu_type": gpu_type, "list_micros": micros} | said


@pytest.fixture
def draft(personas: Personas):
    def make(*lines: dict[str, object], at=NOON, until=None, replaces: RateCard | None = None) -> RateCard:
        given = {"name": "Rates", "valid_from": at, "valid_to": until, "lines": list(lines) or [line()]}
        return card_draft(access=personas.access("finance"), given=given, replaces=replaces, now=NOON)

    return make


@pytest.fixture
def activate(personas: Personas):
    return lambda card: card_activate(access=personas.access("finance"), card=card, now=NOON)


def test_a_card_ends_where_the_next_one_begins(draft, activate) -> None:
    first, second = activate(draft()), draft(at=NOON + 9 * DAY)

    assert card_check(second).ends == first
    activate(second)
    first.refresh_from_db()
    assert first.valid_to == second.valid_from
    pieces = list(price_book().pieces(Kind(H100), millis(NOON), millis(NOON + 20 * DAY)))
    assert [price.card for _, _, price in pieces] == [first.public_id, second.public_id]


def test_overlaps_and_holes_are_told_and_refused(draft, activate) -> None:
    activate(draft(until=NOON + 9 * DAY))
    early, late = draft(at=NOON + 3 * DAY), draft(at=NOON + 10 * DAY)

    assert [problem.kind for problem in card_check(early).problems] == ["overlap"]
    assert [problem.text for problem in card_check(late).problems] == ["No card is active from 2026-11-29 12:00 to 2026-11-30 12:00 UTC."]
    for card in (early, late):
        with pytest.raises(ValidationError):
            activate(card)
        assert RateCard.objects.get(pk=card.pk).state == CardState.DRAFT
    activate(draft(at=NOON + 9 * DAY))


def test_every_type_in_use_needs_a_price(draft, activate) -> None:
    team = builders.quota("acme")
    QuotaShare.objects.create(node=team, gpu_type="A100", guaranteed_milli=8000)

    card = draft()
    assert [problem.text for problem in card_check(card).problems] == ["A100 has no price for any class, tier and pool."]
    with pytest.raises(ValidationError):
        activate(card)


def test_a_version_replaces_a_card_in_its_time(personas, draft, activate) -> None:
    first = activate(draft(until=NOON + 9 * DAY))
    second = draft(line(2_000_000), replaces=first)
    activate(second)

    first.refresh_from_db()
    assert (first.state, second.version, second.valid_to) == (CardState.REPLACED, 2, first.valid_to)
    assert price_book().at(Kind(H100), millis(NOON)).effective_micros == 2_000_000
    with pytest.raises(Conflict):
        draft(replaces=first)
    with pytest.raises(Conflict):
        card_change(access=personas.access("finance"), card=first, given={"name": "No"}, now=NOON)


@pytest.mark.parametrize(
    ("kind", "micros"),
    [
        (Kind(H100), 3_000_000),
        (Kind(H100, "borrowed"), 2_000_000),
        (Kind(H100, "borrowed", preemptible=True), 1_500_000),
        (Kind(H100, "borrowed", tier="mig:1g.10gb"), 400_000),
        (Kind(H100, "borrowed", tier="mig:2g.20gb"), 500_000),
        (Kind(H100, "borrowed", pool="north/fast"), 9_000_000),
    ],
)
def test_the_most_specific_price_holds(draft, activate, kind: Kind, micros: int) -> None:
    lines = [line(), line(2_000_000, share_class="borrowed"), line(1_500_000, share_class="preemptible"), line(500_000, tier="mig")]
    activate(draft(*lines, line(400_000, tier="mig:1g.10gb"), line(9_000_000, pool="north/fast")))

    assert price_book().at(kind, millis(NOON)).effective_micros == micros


def test_discounts_come_off_the_contracted_price(draft, activate) -> None:
    activate(draft(line(3_000_000, contracted_micros=2_000_001, discount_ppm=500_000)))

    price = price_book().at(Kind(H100), millis(NOON))
    assert (price.list_micros, price.contracted_micros, price.effective_micros) == (3_000_000, 2_000_001, 1_000_000)


@pytest.mark.parametrize(
    "wrong",
    [line(-1), line(gpu_type=""), line(share_class="cheap"), line(tier="half"), line(pool="north"), line(discount_ppm=2_000_000), line(1.5)],
)
def test_wrong_prices_are_told_with_their_number(draft, wrong) -> None:
    with pytest.raises(ValidationError) as fault:
        draft(line(), wrong)
    assert all(text.startswith("Price 2: ") for text in fault.value.message_dict["lines"])


def test_two_prices_for_the_same_overlap(draft) -> None:
    with pytest.raises(ValidationError, match="overlaps another one"):
        draft(line(), line(2))


def test_a_card_is_read_again_from_its_own_file(draft) -> None:
    card = draft(line(3_100_001, discount_ppm=125_000), line(2_000_000, share_class="borrowed", tier="mig:1g.10gb", pool="north/fast"))

    again = draft(*lines_read(card_csv(card)), at=NOON + DAY)
    said = [(*price.key, price.list_micros, price.contracted_micros, price.discount_ppm) for price in prices_of(again)]
    assert said == [(*price.key, price.list_micros, price.contracted_micros, price.discount_ppm) for price in prices_of(card)]


def test_an_edited_file_is_sent_with_the_form(personas, draft) -> None:
    browser = personas.client("finance")
    form = {"name": "Edited", "valid_from": "2027-01-01T00:00", "line-TOTAL_FORMS": "0", "line-INITIAL_FORMS": "0"}
    text = card_csv(draft(line(3_000_000))).replace("3", "4")

    wrong = browser.post(reverse("rate_card_new"), form | {"file": "gpu_type,list\nH100-SXM-80GB,dear\n"})
    assert "Line 2, list" in wrong.content.decode()
    kept = browser.post(reverse("rate_card_new"), form | {"file": text})
    assert kept.status_code == 302, kept.content.decode()
    assert [price.list_micros for price in prices_of(RateCard.objects.get(name="Edited"))] == [4_000_000]


def test_only_those_who_manage_costs_draft(personas, draft) -> None:
    for name in ("team_lead", "quota_admin", "operator"):
        with pytest.raises(PermissionDenied):
            card_draft(access=personas.access(name), given={"name": "R", "valid_from": NOON, "lines": [line()]}, now=NOON)
    assert draft().author_name


def test_a_new_installation_is_offered_public_prices(personas) -> None:
    builders.quota("acme")
    QuotaShare.objects.create(node=builders.quota("acme"), gpu_type=H100, guaranteed_milli=8000)
    browser = personas.client("finance")

    assert "Start with public prices" in browser.get("/cost/rates/").content.decode()
    assert "6.155" in browser.get("/cost/rates/new/?from=public").content.decode()


def test_with_approval_another_person_activates_a_card(draft, activate, personas, settings) -> None:
    settings.RATE_APPROVAL = True
    card, other = draft(), personas.access("superuser")
    page = reverse("rate_card", args=[card.public_id])
    activation = reverse("rate_card_activate", args=[card.public_id])

    assert "Waiting for approval" in (told := personas.client("finance").get(page).content.decode()) and activation not in told
    with pytest.raises(PermissionDenied, match="another person"):
        activate(card)
    token = {"HTTP_AUTHORIZATION": f"Bearer {personas.token('finance', 'admin')}"}
    answer = personas.client("anonymous").post(f"/api/v1/rate-cards/{card.public_id}/activate", **token)
    assert answer.status_code == 403 and "another person" in answer.json()["detail"]
    # Who changes it last is its author: the first one approves it now.
    card_change(access=other, card=card, given={"name": "Checked"}, now=NOON)
    with pytest.raises(PermissionDenied):
        card_activate(access=other, card=card, now=NOON)
    assert "Approve and activate" in personas.client("finance").get(page).content.decode()
    assert activate(card).approved_name == "Finance"
    free = card_draft(access=other, given={"name": "Free", "valid_from": NOON + DAY, "valid_to": None, "lines": [line(0)]}, now=NOON)
    activate(free)
    pieces = price_book().pieces(Kind(H100), millis(NOON), millis(NOON + 2 * DAY))
    assert [price.effective_micros for _, _, price in pieces] == [3_000_000, 0]


def test_programs_edit_a_draft_and_no_active_card(personas, draft, activate) -> None:
    card = draft()
    address = f"/api/v1/rate-cards/{card.public_id}"
    finance = personas.client("finance")
    tag = finance.get(address)["ETag"]
    body = {"name": "Renewed", "prices": [line(2_500_000), line(1_000_000, "L40S")]}
    told = finance.put(address, body, content_type="application/json", headers={"If-Match": tag})

    assert told.status_code == 200
    assert (told.json()["name"], [price["list_micros"] for price in told.json()["prices"]]) == ("Renewed", [2_500_000, 1_000_000])
    assert datetime.fromisoformat(told.json()["valid_from"]) == NOON, "it stays where none is sent"
    assert finance.put(address, body, content_type="application/json", headers={"If-Match": tag}).status_code == 412
    activate(RateCard.objects.get())
    assert finance.put(address, body, content_type="application/json").status_code == 409


def test_what_an_edit_leaves_out_stays_and_what_it_sends_as_null_goes(personas, draft) -> None:
    card = draft(until=NOON + DAY)
    card_change(access=personas.access("finance"), card=card, given={"note": "As agreed."}, now=NOON)

    def put(**said: object) -> tuple[object, ...]:
        body = {"name": "Rates", "prices": [line()]} | said
        told = personas.client("finance").put(f"/api/v1/rate-cards/{card.public_id}", body, content_type="application/json").json()
        return told["valid_from"][:10], told["valid_to"] and told["valid_to"][:10], told["note"]

    first, last = (f"{at:%Y-%m-%d}" for at in (NOON, NOON + DAY))
    assert put() == (first, last, "As agreed.")
    assert put(valid_from=None, note="") == (first, last, "")
    assert put(valid_to=None) == (first, None, "")


def rated_months(world: Personas) -> dict[date, int]:
    """The cost of each month by its own days, corrections among them."""
    found: dict[date, int] = {}
    for day, nanos in ChargeLine.objects.values_list("day", "effective_nanos"):
        found[day.replace(day=1)] = found.get(day.replace(day=1), 0) + nanos
    return found


@pytest.mark.parametrize("noon", [0, 12])
def test_what_a_version_would_change_is_what_it_then_changes(personas: Personas, draft, activate, noon: int) -> None:
    """In closed months as corrections, in open ones at once; a price may also change within a day."""
    quota = personas.nodes["acme/research/nlp"]
    used(quota, datetime(2026, 9, 28, tzinfo=UTC), 24 * 5, milli=3500)
    used(quota, datetime(2026, 10, 30, tzinfo=UTC), 24 * 4, job="j-2", share_class="borrowed", preemptible="yes")
    used(quota, datetime(2026, 10, 2, 1, 30, tzinfo=UTC), 7.3, job="j-3", gpu_type="L4", tier="share", milli=333)
    now = datetime(2026, 11, 20, tzinfo=UTC)
    first = activate(draft(line(), line(1_000_000, "L4"), at=datetime(2026, 9, 1, tzinfo=UTC)))
    for month in (date(2026, 9, 1), date(2026, 10, 1), date(2026, 11, 1)):
        month_refresh(first=month, now=now)
    month_close(access=personas.access("finance"), first=date(2026, 9, 1), mode="chargeback", now=now)
    if noon:
        card = draft(line(2_700_001, discount_ppm=100_000), line(1_500_000, "L4"), at=datetime(2026, 9, 30, noon, tzinfo=UTC))
    else:
        card = draft(line(2_700_001), line(9_000_000, share_class="borrowed"), line(1_500_000, "L4"), replaces=first)

    before, told = rated_months(personas), effects_of(card, now)
    over_http = personas.client("finance").get(f"/api/v1/rate-cards/{card.public_id}/effects").json()["items"]
    page = personas.client("finance").get(f"/cost/rates/{card.public_id}/").content.decode()
    card_activate(access=personas.access("finance"), card=card, now=now + timedelta(minutes=1))
    for month in (date(2026, 10, 1), date(2026, 11, 1)):
        month_refresh(first=month, now=now + timedelta(minutes=2))

    assert [(one.first, one.is_closed) for one in told] == [(date(2026, 11, 1), False), (date(2026, 10, 1), False), (date(2026, 9, 1), True)]
    after = rated_months(personas)
    for one, http in zip(told, over_http, strict=True):
        assert one.first is not None
        assert (http["month"], http["after_nanos"]) == (one.first.isoformat(), one.after)
        # A part of a day is told by the hours of the day; the lines know when in it the job ran.
        few = 10 if not noon else 10**9
        assert abs(one.before - before[one.first]) < 10 and abs(one.change - (after[one.first] - before[one.first])) < few
    assert "September 2026, closed: a correction" in page and f">{money(told[2].change)}<" in page


@pytest.mark.parametrize("until", [None, datetime(2027, 1, 1, tzinfo=UTC)])
def test_a_card_that_begins_later_is_told_by_the_use_of_the_last_30_days(personas: Personas, draft, activate, until: datetime | None) -> None:
    """Whole days, also where the card before ends by itself."""
    now = datetime(2026, 11, 20, 9, tzinfo=UTC)
    used(personas.nodes["acme/research/nlp"], datetime(2026, 11, 1, tzinfo=UTC), 100)
    used(personas.nodes["acme/research/nlp"], datetime(2026, 11, 20, tzinfo=UTC), 6, job="j-2")
    activate(draft(at=datetime(2026, 9, 1, tzinfo=UTC), until=until))
    month_refresh(first=date(2026, 11, 1), now=now)
    card = draft(line(3_300_000), at=datetime(2027, 1, 1, tzinfo=UTC))

    same = draft(at=datetime(2026, 9, 1, tzinfo=UTC), until=until, replaces=RateCard.objects.get(state=CardState.ACTIVE))
    assert effects_of(same, now) == []
    assert "It changes the cost of no month so far." in personas.client("finance").get(f"/cost/rates/{same.public_id}/").content.decode()
    assert effects_of(card, now) == [(None, False, 300 * 10**9, 330 * 10**9)]
    assert effects_of(draft(at=datetime(2026, 9, 20, tzinfo=UTC), until=datetime(2026, 10, 1, tzinfo=UTC)), now) == [], "it overlaps"
    assert personas.client("team_lead").get(f"/api/v1/rate-cards/{card.public_id}/effects").status_code == 403
