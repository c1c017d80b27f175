"""Reconciling a month with a supplier's invoice: the table adds up to the cent whatever the invoice says, and names what differs."""

from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.core.models import AuditEntry
from quotas.chargeback.months import idle_write, month_close, month_refresh
from quotas.chargeback.pricing import HOUR
from quotas.chargeback.reconciling import account_of, is_outdated, month_reconcile, steps_of
from quotas.chargeback.variance import CENT, Account, Basis, Billed, Invoice, TypeUse, variance
from quotas.models import ChargeMonth, RateCard
from tests.personas import Personas
from tests.quotas.chargeback.test_months import LATER, NOVEMBER, OCTOBER, START, price
from tests.quotas.chargeback.worlds import A100, H100, used

amounts = st.integers(-(10**13), 10**15)
uses = st.integers(0, 10**15)


@st.composite
def type_uses(draw: st.DrawFn) -> TypeUse:
    free, list_free, bare, priced = (draw(uses) for _ in range(4))
    return TypeUse(max(free, list_free) + bare + priced, free, list_free, bare, draw(amounts), draw(amounts))


accounts = st.builds(
    Account,
    charged=amounts,
    charged_for=uses,
    of_earlier=amounts,
    corrected=amounts,
    idle=st.dictionaries(st.sampled_from(("window", "unwanted")), st.tuples(uses, amounts)),
    types=st.dictionaries(st.sampled_from((H100, A100)), type_uses()),
)
billed = st.lists(
    st.builds(Billed, st.sampled_from((H100, A100, "T4")), st.none() | uses, st.none() | st.integers(0, 20_000_000)),
    unique_by=lambda one: one.gpu_type,
)


@given(accounts, st.integers(0, 10**10), st.integers(0, 10**6), st.sampled_from(list(Basis)), billed)
@settings(max_examples=100, deadline=None)
def test_the_steps_add_up_to_the_invoice_whatever_it_says(account: Account, amount: int, fees: int, basis: str, lines: list[Billed]) -> None:
    steps = variance(account, Invoice(amount * CENT, fees * CENT, basis, lines))

    assert sum(step.nanos for step in steps) == amount * CENT
    assert steps[-1].key == "left" and steps[-1].nanos % CENT == 0


@pytest.fixture
def world(personas: Personas) -> Personas:
    """October with a discount for borrowed hours, idle time, hours without a card and a correction that came after it was closed."""
    nlp, search = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]
    price(personas)
    used(nlp, START + timedelta(days=1), 100, milli=8000, job="j-1")
    used(search, START + timedelta(days=3), 40, milli=4000, job="j-2", gpu_type=A100)
    used(search, START + timedelta(days=5), 10, job="j-3", gpu_type="T4")
    month_refresh(first=OCTOBER, now=LATER)
    idle_write(first=OCTOBER, found={(H100, "unwanted", OCTOBER): 50 * HOUR}, now=LATER)
    month_close(access=personas.access("finance"), first=OCTOBER, mode="chargeback", now=LATER)
    return personas


def reconciled(world: Personas, amount: str, name: str = "finance", **said):
    given = {"amount_nanos": round(float(amount) * 100) * CENT, "reference": "INV-1"} | said
    return month_reconcile(access=world.access(name), first=OCTOBER, given=given, now=LATER)


def told(made) -> dict[str, float]:
    return {f"{step.key} {step.part}".strip(): step.nanos / 10**9 for step in steps_of(made) if step.nanos}


@pytest.mark.django_db
def test_an_invoice_that_is_2_1_percent_higher_is_explained_to_the_cent(world) -> None:
    """Charged are 800 H100 and 160 A100 hours at 2.00; the supplier bills 50 idle hours too, H100 at 2.04, T4 at 0.40, and fees."""
    expected = 1600 + 320 + 100
    lines = [
        {"gpu_type": H100, "milli_millis": 850 * HOUR, "unit_micros": 2_040_000},
        {"gpu_type": "T4", "milli_millis": None, "unit_micros": 400_000},
    ]
    made = reconciled(world, f"{expected * 1.021:.2f}", lines=lines, fees_nanos=442 * CENT)

    assert made.amount_nanos == 206_242 * CENT
    assert told(made) == {"charged": 1920, "idle unwanted": 100, "bare T4": 4, f"price {H100}": 34, "fees": 4.42}
    assert made.left_nanos == 0 and sum(step.nanos for step in steps_of(made)) == made.amount_nanos
    assert AuditEntry.objects.filter(action="month.reconcile", object_id="2026-10").exists()
    page = world.client("finance").get("/cost/2026-10/invoice/").content.decode()
    assert "Invoice 2.0400 a GPU-hour, rate card 2.0000 on average (+2.00%)." in page and "INV-1" in page


@pytest.mark.django_db
def test_what_nothing_explains_is_told_with_what_would(world) -> None:
    made = reconciled(world, "2062.42")
    left = steps_of(made)[-1]
    assert (left.nanos, left.note) == (42_420_000_000, "A unit price +2.10% off the rate card would explain it. 10.000 GPU-hours have no card.")

    assert "bill used hours alone" in steps_of(reconciled(world, "1920"))[-1].note
    at_list = reconciled(world, "4040")
    assert "may be at list prices" in steps_of(at_list)[-1].note
    assert told(reconciled(world, "4040", basis="list")) == {"charged": 1920, "idle unwanted": 100, "list": 2020}


@pytest.mark.django_db
def test_corrections_after_closing_are_a_step_and_make_older_tables_outdated(world) -> None:
    made = reconciled(world, "2020")
    assert made.left_nanos == 0 and not is_outdated(made)

    price(world, 1_000_000, replaces=RateCard.objects.get(state="active"), now=LATER + timedelta(minutes=1), more="T4")
    month_refresh(first=NOVEMBER, now=LATER + timedelta(hours=1))

    assert is_outdated(made)
    again = told(reconciled(world, "2020"))
    assert (again["charged"], again["corrected"]) == (1920, -950)
    november = account_of(ChargeMonth.objects.get(first=NOVEMBER))
    assert november.charged == november.of_earlier == -950 * 10**9


@pytest.mark.django_db
def test_what_is_wrong_with_an_invoice_is_told_at_its_field(world) -> None:
    with pytest.raises(ValidationError) as fault:
        reconciled(world, "1", amount_nanos=1, reference=" ", currency="EUR", basis="odd", lines=[{"gpu_type": "", "unit_micros": -1}])
    assert set(fault.value.message_dict) == {"amount", "reference", "currency", "basis", "lines"}
    with pytest.raises(PermissionDenied):
        reconciled(world, "1", "team_lead")


@pytest.mark.django_db
def test_finance_fills_in_the_form(world) -> None:
    browser = world.client("finance")
    form = {"amount": "2,062.42", "reference": "INV-7", "basis": "contracted", "fees": "8.42"}
    form |= {"line-TOTAL_FORMS": "1", "line-INITIAL_FORMS": "1", "line-0-gpu_type": H100, "line-0-hours": "850", "line-0-unit": "2.04"}

    wrong = browser.post("/cost/2026-10/invoice/", form | {"amount": "much"})
    assert wrong.status_code == 422 and "Write a number such as 1234.56" in wrong.content.decode()
    assert browser.post("/cost/2026-10/invoice/", form).status_code == 302
    month = ChargeMonth.objects.get(first=OCTOBER)
    made = month.reconciliations.get()
    assert told(made) == {"charged": 1920, "idle unwanted": 100, f"price {H100}": 34, "fees": 8.42}
    assert "INV-7" in browser.get("/cost/?month=2026-10").content.decode()
