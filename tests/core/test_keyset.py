"""Walking a list by keyset pages yields each row once and in order, whatever the order is and wherever values are missing."""

from datetime import timedelta

import pytest
from django.db.models import Count, F
from django.db.models.functions import Lower
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.core.keyset import BadToken, Key, keyset_page
from scheduler.models import Node
from tests.builders import NOON, cluster, node

pytestmark = pytest.mark.django_db
FIELDS = ("health", "pcie_gbps", "heartbeat_at", "spare", "domain__path", "name")
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "health": st.sampled_from(["healthy", "suspect", "down"]),
            "pcie_gbps": st.none() | st.integers(0, 3),
            "heartbeat_at": st.none() | st.integers(0, 2).map(lambda minutes: NOON + timedelta(minutes=minutes, milliseconds=1)),
            "spare": st.booleans(),
            "at": st.sampled_from(["", "s1/l1", "s2/l1"]),
        }
    ),
    max_size=14,
)
ORDERS = st.lists(st.builds(Key, st.sampled_from(FIELDS), st.booleans()), min_size=1, max_size=3, unique_by=lambda key: key.expression)


def walk(queryset, order, size):
    pages, place = [], ""
    while True:
        page = keyset_page(queryset, order=order, size=size, after=place)
        pages.append(page)
        place = page.after
        if not place:
            return pages


def in_python(rows, order):
    """The slow, obvious twin: stable sorts from the last key to the first, rows without a value at the end."""
    rows = sorted(rows, key=lambda row: row.pk, reverse=order[-1].descending)
    for key in reversed(order):
        path = key.expression.split("__")
        value = {row: (row.domain and row.domain.path) if len(path) == 2 else getattr(row, path[0]) for row in rows}
        present = sorted((row for row in rows if value[row] is not None), key=value.get, reverse=key.descending)
        if key.descending:
            # A reversed stable sort keeps equal rows in their first order, which is what the keys behind this one made.
            present = sorted((row for row in rows if value[row] is not None), key=value.get)
            groups = {}
            for row in present:
                groups.setdefault(value[row], []).append(row)
            present = [row for group in sorted(groups, reverse=True) for row in groups[group]]
        rows = present + [row for row in rows if value[row] is None]
    return rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, order=ORDERS, size=st.integers(1, 6))
def test_pages_yield_each_row_once_in_order_both_ways(rows, order, size):
    Node.objects.all().delete()
    owner = cluster(levels=("spine", "leaf"))
    for fields in rows:
        node(of=owner, **fields)
    expected = in_python(list(Node.objects.select_related("domain")), order)
    pages = walk(Node.objects.all(), order, size)
    assert [row for page in pages for row in page.rows] == expected
    assert [page.first for page in pages] == [1 + size * number for number in range(len(pages))]
    # And back again from the last page: the very same pages.
    for later, earlier in zip(reversed(pages), reversed(pages[:-1]), strict=False):
        back = keyset_page(Node.objects.all(), order=order, size=size, before=later.before)
        assert (back.rows, back.first, back.after, back.before) == (earlier.rows, earlier.first, earlier.after, earlier.before)
    assert not pages[0].before


def test_rows_that_come_and_go_between_pages_neither_skip_nor_repeat_others():
    owner = cluster()
    made = [node(f"n{number}", of=owner) for number in range(0, 20, 2)]
    order = [Key("name")]
    first = keyset_page(Node.objects.all(), order=order, size=4)
    made[0].delete()
    made[3].delete()
    node("n1", of=owner)
    second = keyset_page(Node.objects.all(), order=order, size=4, after=first.after)
    assert [row.name for row in [*first.rows, *second.rows]] == sorted(f"n{number}" for number in range(0, 20, 2))[:8]


def test_values_rows_annotations_and_expressions_can_be_paged():
    owner = cluster()
    for number in range(5):
        node(f"N{number}" if number % 2 else f"n{number}", of=owner, gpus=number % 3)
    queryset = Node.objects.annotate(gpu_count=Count("gpus")).values("name", "gpu_count")
    pages = walk(queryset, [Key("gpu_count", True), Key(Lower("name"))], 2)
    assert [row["name"] for page in pages for row in page.rows] == ["n2", "N1", "n4", "n0", "N3"]
    assert [row["gpu_count"] for page in pages for row in page.rows] == [2, 1, 1, 0, 0]


def test_a_page_is_one_query_that_begins_at_its_place(django_assert_num_queries):
    owner = cluster()
    for number in range(5):
        node(f"n{number}", of=owner)
    place = keyset_page(Node.objects.all(), order=[Key("name")], size=2).after
    with django_assert_num_queries(1) as seen:
        keyset_page(Node.objects.all(), order=[Key("name")], size=2, after=place)
    assert "OFFSET" not in seen.captured_queries[0]["sql"]
    assert ">= 'n1'" in seen.captured_queries[0]["sql"]


@pytest.mark.parametrize("token", ["x", "W10", "W10:abc", "\0", "é" * 10, "a" * 5000])
def test_a_token_that_is_not_ours_is_refused(token):
    node()
    with pytest.raises(BadToken):
        keyset_page(Node.objects.all(), order=[Key("name")], size=2, after=token)


def test_a_token_of_another_order_is_refused():
    for _ in range(3):
        node()
    place = keyset_page(Node.objects.all(), order=[Key("name")], size=2).after
    with pytest.raises(BadToken, match="another order"):
        keyset_page(Node.objects.all(), order=[Key("name", True)], size=2, after=place)
    with pytest.raises(BadToken, match="can't be read"):
        keyset_page(Node.objects.all(), order=[Key("name")], size=2, after=place[:-1])


def test_a_query_with_an_order_of_its_own_is_put_in_the_asked_one():
    for _ in range(3):
        node()
    assert [row.pk for row in keyset_page(Node.objects.order_by(F("name").desc()), order=[Key("name")], size=3).rows] == list(
        Node.objects.order_by("name").values_list("pk", flat=True)
    )
