"""Lists as their address asks for them: filters, search, order, paging, files, and what is said about an address that makes no sense."""

import csv
import io
import re
from datetime import timedelta

import pytest
from django.db.models import Q
from django.http import QueryDict
from django.test import AsyncRequestFactory, RequestFactory
from django_htmx.middleware import HtmxDetails
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core import csvfile
from gpufleet.core.csvfile import harmless
from gpufleet.core.filters import search_words, word_spelt
from gpufleet.core.tables import Choice, Column, Flag, Moment, Table, Text
from scheduler.models import Health, Node
from tests.builders import NOON, cluster, node

pytestmark = pytest.mark.django_db
LIST = Table(
    name="nodes",
    noun="node",
    columns=(
        Column("name", "Node", sort="name", cell="<b>{{ row.name }}</b>"),
        Column("health", "Health", value="get_health_display", sort=("health", "name"), cell="{{ row.health }}"),
        Column("cpus", "CPUs", sort="cpus", numeric=True, most_first=True),
        Column("pool", "Pool", value="pool.name"),
        Column("reason", "Reason", value="health_reason", on_page=False),
        Column("shout", "Shout", value=lambda row: row.name.upper(), on_page=False),
    ),
    filters=(
        Choice("health", "Health", Health.choices, counts=lambda: {"healthy": 3}),
        Text("pool", "Pool", "pool__name"),
        Flag("spare", "Spare", Q(spare=True)),
        Moment("since", "Since", "health_since"),
        Moment("until", "Until", "health_since", until=True),
    ),
    search=("name", "health_reason"),
    default_sort="name",
    empty="No nodes yet. Import some.",
    empty_href="/inventory/import/",
    empty_action="Import",
    row_key="name",
    row_field="name",
)


@pytest.fixture
def nodes():
    owner = cluster()
    node("a1", of=owner, cpus=8, health="down", health_reason='fell "off" the bus', health_since=NOON)
    node("a2", of=owner, cpus=16, spare=True, health_since=NOON + timedelta(days=1))
    node("b1", of=owner, cpus=32, health="suspect", health_reason="<script>alert(1)</script>", health_since=NOON + timedelta(days=1))
    return Node.objects.select_related("pool")


def names(address, queryset=None):
    page = LIST.page(QueryDict(address), Node.objects.all() if queryset is None else queryset)
    return [row.name for row in page.rows], page.problems


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("", "a1 a2 b1"),
        ("sort=-name", "b1 a2 a1"),
        ("sort=-cpus,name", "b1 a2 a1"),
        ("sort=health", "a1 a2 b1"),
        ("health=down", "a1"),
        ("health=down&health=suspect", "a1 b1"),
        ("health=", "a1 a2 b1"),
        ("spare=yes", "a2"),
        ("spare=no", "a1 b1"),
        ("q=A2", "a2"),
        ("q=off+bus", "a1"),
        ("q=%22the+bus%22", "a1"),
        ("q=bus+suspect", ""),
        ("since=2026-11-20&until=2026-11-20", "a1"),
        ("until=2026-11-20T12:00:00Z", "a1"),
        ("until=2026-11-20T11:59:59", ""),
        ("utm_source=mail", "a1 a2 b1"),
    ],
)
def test_the_address_chooses_rows_and_order(nodes, address, expected):
    assert names(address) == (expected.split(), [])


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("health=broken&health=down", "Health can't be “broken”"),
        ("sort=colour", "can't be sorted by “colour”; it can be by name, health, cpus"),
        ("sort=pool", "can't be sorted by “pool”"),
        ("spare=maybe", "Spare can't be “maybe”; it can be yes or no."),
        ("since=yesterday", "Since can't be “yesterday”; write a day as 2026-11-20"),
        ("since=2026-02-31", "Since can't be “2026-02-31”"),
        ("until=9999-12-31", "Until can't be “9999-12-31”"),
        ("size=7", "can't have “7” rows; it can have 25, 50, 100, 250, 500"),
        ("size=²", "can't have “²” rows"),
        ("size=-1", "can't have “-1” rows"),
        ("after=gibberish", "This is the first page: the place in the list can't be read."),
        ("after=a&before=b", "A page lies behind one row or before one"),
        ("q=%00", "The search holds a character that no text has."),
        ("pool=%00", "Pool holds a character that no text has."),
    ],
)
def test_what_makes_no_sense_is_named_and_otherwise_ignored(nodes, address, said):
    rows, problems = names(address)
    assert len(problems) == 1
    assert said in problems[0]
    assert rows == (["a1"] if "health=down" in address else ["a1", "a2", "b1"])


def test_three_clicks_on_a_heading_go_round():
    page = LIST.page(QueryDict("health=down&after=x"), Node.objects.all())
    name, health, cpus, pool = page.heads
    assert (name.aria_sort, name.href) == ("ascending", "?health=down&sort=-name")
    assert (health.aria_sort, health.href) == ("none", "?health=down&sort=health")
    assert (cpus.aria_sort, cpus.href) == ("none", "?health=down&sort=-cpus")
    assert (pool.aria_sort, pool.href) == ("", "")
    turned = {asked: LIST.page(QueryDict(f"sort={asked}"), Node.objects.all()).heads for asked in ("-name", "health", "-health", "-cpus", "cpus")}
    assert (turned["-name"][0].aria_sort, turned["-name"][0].href) == ("descending", "?")
    assert turned["health"][1].href == "?sort=-health"
    assert turned["-health"][1].href == "?"
    assert turned["-cpus"][2].href == "?sort=cpus"
    assert turned["cpus"][2].href == "?"
    assert turned["cpus"][0].aria_sort == "none"


def rendered(address, queryset, **context):
    return LIST.respond(RequestFactory().get(f"/nodes/?{address}"), queryset, "_table.html", context)


def test_htmx_gets_the_region_alone_and_a_clean_address(nodes):
    request = RequestFactory().get("/nodes/?q=&health=down&size=25", headers={"HX-Request": "true", "HX-Target": "table-nodes"})
    request.htmx = HtmxDetails(request)
    answer = LIST.respond(request, nodes, "no-such-template.html")
    assert answer["HX-Push-Url"] == "?health=down&size=25"
    assert answer.content.decode().strip().startswith('<div class="table-region"')
    assert "HX-Request" in answer["Vary"]


@pytest.mark.parametrize(
    ("address", "found", "order"),
    [
        ("rows=b1,a1", ["a1", "b1"], "a1,a2,b1"),
        ("rows=b1,a1&sort=-name", ["b1", "a1"], "b1,a2,a1"),
        ("rows=b1,a1&health=down", ["a1"], "a1"),  # the other one is filtered out
        ("rows=a1&after=nonsense", ["a1"], "a1,a2,b1"),
        ("rows=nobody,a%00", [], "a1,a2,b1"),
        ("rows=", [], "a1,a2,b1"),
        ("rows=a1&q=zzz", [], ""),
    ],
)
def test_named_rows_come_alone_with_the_order_of_all_that_the_page_shows(nodes, address, found, order):
    html = rendered(address, nodes, version=7).content.decode()
    assert html.startswith(f'<table data-version="7" data-order="{order}"><tbody>')
    assert re.findall('data-key="(.*?)"', html) == found
    assert "<script>" not in html


def test_named_rows_are_those_of_the_very_page(nodes, django_assert_num_queries):
    for number in range(30):
        node(f"c{number:02}", of=nodes[0].cluster)
    first = LIST.page(QueryDict("size=25"), nodes)
    second = f"size=25&after={first.slice.after}"
    with django_assert_num_queries(2):
        html = rendered(f"rows=a1,c29&{second}", nodes).content.decode()
    assert re.findall('data-key="(.*?)"', html) == ["c29"]
    assert re.findall('data-order="(.*?)"', html) == [",".join(f"c{number:02}" for number in range(22, 30))]


def test_what_only_the_whole_page_shows_is_not_worked_out_for_a_few_rows(nodes):
    def told() -> str:
        raise AssertionError("asked for")

    assert "asked for" not in LIST.respond(RequestFactory().get("/nodes/?rows=a1"), nodes, "_table.html", {"tabs": told}).content.decode()


def test_a_page_shows_rows_extent_and_links_and_escapes_what_was_typed(nodes):
    html = rendered("q=%3Cb%3E&size=25", nodes).content.decode()
    assert 'value="&lt;b&gt;"' in html
    html = rendered("size=25", nodes).content.decode()
    assert "1–3 of 3 nodes" in html
    assert "<b>a1</b>" in html
    assert "Healthy (3)" in re.sub(r"\s+", " ", html)
    assert "<script" not in html
    assert ' style="' not in html


def test_nothing_matches_is_told_from_nothing_there(nodes):
    matched = rendered("q=zzz", nodes).content.decode()
    assert "No node matches these filters." in matched
    assert "No nodes yet" not in matched
    bare = rendered("", Node.objects.none()).content.decode()
    assert "No nodes yet. Import some." in bare
    assert "/inventory/import/" not in bare
    assert 'href="/inventory/import/"' in rendered("", Node.objects.none(), can_add=True).content.decode()


def test_paging_keeps_filters_and_counts_where_it_stands():
    owner = cluster()
    for number in range(60):
        node(f"n{number:02}", of=owner, spare=number % 2 == 0)
    first = LIST.page(QueryDict("size=25&spare=yes"), Node.objects.all())
    assert (first.extent, first.previous_href) == ("1–25 of 30 nodes", "")
    second = LIST.page(QueryDict(first.next_href[1:]), Node.objects.all())
    assert (second.extent, second.next_href, second.rows[0].name) == ("26–30 of 30 nodes", "", "n50")
    back = LIST.page(QueryDict(second.previous_href[1:]), Node.objects.all())
    assert (back.extent, back.rows) == ("1–25 of 30 nodes", first.rows)


def test_a_page_whose_rows_are_gone_becomes_the_first():
    owner = cluster()
    for number in range(30):
        node(f"n{number:02}", of=owner)
    first = LIST.page(QueryDict("size=25"), Node.objects.all())
    Node.objects.filter(name__gt="n24").delete()
    again = LIST.page(QueryDict(first.next_href[1:]), Node.objects.all())
    assert (again.extent, len(again.rows)) == ("1–25 of 25 nodes", 25)


def test_counting_stops_at_a_limit_and_says_so(monkeypatch):
    monkeypatch.setattr("gpufleet.core.tables.COUNT_LIMIT", 40)
    owner = cluster()
    for number in range(42):
        node(f"n{number:02}", of=owner)
    assert LIST.page(QueryDict("size=25"), Node.objects.all()).extent == "1–25 of more than 40 nodes"


def test_counting_what_a_search_finds_stops_sooner(monkeypatch):
    monkeypatch.setattr("gpufleet.core.tables.SEARCH_COUNT_LIMIT", 30)
    owner = cluster()
    for number in range(42):
        node(f"n{number:02}", of=owner)
    assert LIST.page(QueryDict("size=25&q=n"), Node.objects.all()).extent == "1–25 of more than 30 nodes"
    assert LIST.page(QueryDict("size=25"), Node.objects.all()).extent == "1–25 of 42 nodes"


@pytest.mark.parametrize("count", [1, 20, 40])
def test_queries_do_not_grow_with_rows(count, django_assert_num_queries):
    owner = cluster()
    for number in range(count):
        node(f"n{number:02}", of=owner)
    with django_assert_num_queries(2 if count > 25 else 1):
        rendered("size=25", Node.objects.select_related("pool"))


def test_the_file_holds_every_filtered_row_in_order(nodes, monkeypatch):
    monkeypatch.setattr(csvfile, "CHUNK", 2)
    answer = rendered("format=csv&sort=-name", nodes)
    assert answer["Content-Type"] == "text/csv; charset=utf-8; header=present"
    assert answer["Content-Disposition"] == 'attachment; filename="nodes.csv"'
    rows = list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode(), newline="")))
    assert rows[0] == ["Node", "Health", "CPUs", "Pool", "Reason", "Shout"]
    assert rows[1] == ["b1", "Suspect", "32", "", "<script>alert(1)</script>", "B1"]
    assert [row[0] for row in rows[1:]] == ["b1", "a2", "a1"]
    assert rows[3][4] == 'fell "off" the bus'


@pytest.mark.django_db(transaction=True)
async def test_the_file_is_streamed_under_an_asynchronous_server(monkeypatch):
    from asgiref.sync import sync_to_async

    monkeypatch.setattr(csvfile, "CHUNK", 2)

    def fill():
        owner = cluster()
        for number in range(5):
            node(f"n{number}", of=owner)

    await sync_to_async(fill)()
    request = AsyncRequestFactory().get("/nodes/?format=csv")
    answer = await sync_to_async(LIST.respond)(request, Node.objects.select_related("pool"))
    pieces = [piece async for piece in answer.streaming_content]
    assert len(pieces) == 3
    assert b"".join(pieces).count(b"\r\n") == 6


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_that_would_run_as_a_formula_is_defused(start):
    assert harmless(f"{start}HYPERLINK(1)") == f"'{start}HYPERLINK(1)"


def test_numbers_times_and_nothing_stay_what_they_are():
    assert [harmless(value) for value in (-5, -0.5, None, True, NOON, "a-b")] == [-5, -0.5, "", "yes", "2026-11-20T12:00:00.000Z", "a-b"]


def test_search_words_keep_quotes_together():
    assert search_words('a "b  c" d"e') == ["a", "b  c", "d", "e"]
    assert search_words('""') == []
    assert search_words('"say ""x""" """" b') == ['say "x"', '"', "b"]


@given(st.lists(st.text(alphabet='ab" =\t', min_size=1).map(str.strip).filter(bool), max_size=4))
def test_every_word_is_read_as_it_was_spelt(words):
    assert search_words(" ".join(map(word_spelt, words))) == words


def test_a_column_of_a_function_needs_a_cell():
    with pytest.raises(ValueError, match="needs a cell"):
        Table(name="x", noun="x", columns=(Column("a", "A", value=lambda row: 1),), default_sort="a")
