"""Reading the usage ledger: who sees what of it, and sums that equal the entries to the millisecond."""

import csv
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quotas.models import LedgerEntry, QuotaNode
from quotas.selectors.ledger import Span, ledger_list, ledger_sums, milli_hours
from tests.personas import Personas
from tests.quotas.chargeback.worlds import A100, H100, used

DAY = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = 1000 * 3_600_000


@pytest.fixture
def held(personas: Personas) -> Personas:
    nlp, other = personas.nodes["acme/research/nlp"], personas.nodes["acme/product"]
    used(nlp, DAY, 10, milli=8000, job="j-1")
    used(nlp, DAY + timedelta(hours=10), 2, milli=4000, job="j-2", share_class="borrowed", gpu_type=A100)
    used(nlp, DAY + timedelta(hours=12), None, milli=1000, job="j-2", share_class="reserved")
    used(other, DAY, 5, milli=2000, job="j-3")
    return personas


def asked(client: Client, person: Any, **query: str) -> list[tuple[str, int]]:
    client.force_login(person)
    answer = client.get("/api/v1/ledger", query)
    assert answer.status_code == 200, answer.content
    return [(row["job"], row["milli_millis"]) for row in answer.json()["items"]]


def test_an_entry_counts_as_far_as_it_lies_in_the_span(held: Personas, client: Client):
    ada = held.users["superuser"]
    span = {"from": "2026-03-02T08:00:00Z", "to": "2026-03-02T13:00:00Z"}

    assert asked(client, ada, **span) == [("j-2", HOUR), ("j-2", 8 * HOUR), ("j-1", 16 * HOUR)]
    assert asked(client, ada, **span, **{"class": "borrowed"}) == [("j-2", 8 * HOUR)]
    assert asked(client, ada, job="j-3") == [("j-3", 10 * HOUR)]
    assert asked(client, ada, team="acme/product") == [("j-3", 10 * HOUR)]
    assert asked(client, ada, type=A100.lower()) == [("j-2", 8 * HOUR)]
    sums = client.get("/api/v1/ledger/sums", span).json()["items"]
    assert [(one["gpu_type"], one["guaranteed_milli_millis"], one["reserved_milli_millis"], one["borrowed_milli_millis"]) for one in sums] == [
        (A100, 0, 0, 8 * HOUR),
        (H100, 16 * HOUR, HOUR, 0),
    ]
    assert client.get("/api/v1/ledger/sums", {"class": "lent"}).status_code == 422


def test_what_lies_outside_the_readers_subtrees_is_not_there_for_page_file_and_sums(held: Personas, client: Client):
    assert {job for job, _ in asked(client, held.users["viewer"])} == {"j-1", "j-2"}
    for address in ("/api/v1/ledger/file", reverse("ledger") + "?format=csv"):
        rows = list(csv.DictReader(b"".join(client.get(address)).decode().splitlines()))
        assert {row["Job"] for row in rows} == {"j-1", "j-2"}
    QuotaNode.objects.filter(path="acme/research/nlp").update(path="acme/research/language")
    assert {job for job, _ in asked(client, held.users["viewer"])} == {"j-1", "j-2"}, "seen by its place now, too"
    client.force_login(held.users["stranger"])
    assert client.get("/api/v1/ledger").status_code == 403


def test_the_page_has_exact_sums_and_opens_with_a_week(held: Personas, client: Client):
    client.force_login(held.users["superuser"])

    page = client.get(reverse("ledger"), {"from": "2026-03-02", "to": "2026-03-02", "class": "guaranteed"}).content.decode()

    assert "90.000" in page and "/jobs/j-3/" in page and "/jobs/j-2/" not in page
    assert "/jobs/j-1/" not in client.get(reverse("ledger")).content.decode(), "held months ago"
    narrowed = client.get(reverse("ledger"), {"class": "borrowed"}, headers={"HX-Request": "true", "HX-Target": "table-ledger"}).content.decode()
    assert 'hx-swap-oob="true"' in narrowed and "8.000" in narrowed


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 10**8), st.none() | st.integers(0, 10**8), st.integers(1, 8000), st.sampled_from(["guaranteed", "borrowed", "reserved"])
        ),
        max_size=6,
    ),
    bounds=st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)),
)
def test_sums_of_the_database_equal_the_lines_to_the_millisecond(personas: Personas, rows: list[Any], bounds: tuple[int, int]):
    node = personas.nodes["acme/product"]
    mark = LedgerEntry.objects.order_by("-id").values_list("id", flat=True).first() or 0
    for since, length, milli, share_class in rows:
        hours = None if length is None else timedelta(milliseconds=length) / timedelta(hours=1)
        entry = used(node, DAY + timedelta(milliseconds=since), None, milli=milli, share_class=share_class)
        if hours is not None:
            LedgerEntry.objects.filter(pk=entry.pk).update(until=entry.since + timedelta(milliseconds=length))
    span = Span(*(DAY + timedelta(milliseconds=one) for one in sorted(bounds)))
    entries = ledger_list(personas.access("superuser")).filter(id__gt=mark)

    sums = ledger_sums(entries, span)

    assert sum(one.total for one in sums) == sum(span.used(entry) for entry in entries)
    for one, shown in zip(sums, milli_hours(sums), strict=True):
        assert sum(shown[:-1]) == shown[-1]
        assert abs(2000 * one.total - 2 * HOUR * shown[-1]) <= HOUR
