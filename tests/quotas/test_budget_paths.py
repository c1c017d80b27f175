"""Budgets of nodes that are renamed and moved: what was used below a node while it stood there counts, under whatever path the ledger has it."""

import importlib
import random
from collections import defaultdict
from datetime import datetime, timedelta

import pytest
from django.apps import apps

from quotas.models import Budget, LedgerClock, QuotaNode, QuotaPath
from quotas.permissions import access_for_user
from quotas.selectors.budgets import MILLI_MILLIS_PER_MILLI_HOUR, standings, used_between
from quotas.selectors.rates import price_book
from quotas.services.budgets import budget_count, budgets_unsettle
from quotas.services.nodes import node_move
from tests import builders
from tests.builders import NOON
from tests.quotas.chargeback.worlds import used
from tests.quotas.test_budgets import budget, busy, root

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def moved(node: QuotaNode, name: str, now: datetime, parent: QuotaNode | None = None) -> None:
    found = QuotaNode.objects.select_related("parent").get(pk=node.pk)
    node_move(access=access_for_user(root()), node=found, parent=parent or found.parent, name=name, revision=found.revision, now=now)


def hours(of: Budget, now: datetime) -> int:
    """In thousandths of GPU-hours."""
    return standings([Budget.objects.select_related("quota").get(pk=of.pk)], price_book(), now)[0].used


def test_a_team_that_is_renamed_keeps_what_it_used() -> None:
    fleet, found = busy(1)
    budget_count(key=found.pk, now=fleet.now)
    moved(found.quota, "crew", fleet.now)
    fleet.after(hours=1).tick()

    assert hours(found, fleet.now) == 16_000
    assert hours(budget("acme/crew", fleet.now, name="Anew"), fleet.now) == 16_000
    budgets_unsettle(since=NOON)
    budget_count(key=found.pk, now=fleet.now)
    assert hours(found, fleet.now) == 16_000, "counted again it is as much"


def test_who_takes_over_its_name_begins_with_nothing() -> None:
    fleet, found = busy(1)
    top = found.quota.parent
    moved(found.quota, "crew", fleet.now)
    builders.quota("team", parent=top)

    assert hours(budget("acme/team", fleet.now, name="Another"), fleet.now) == 0
    assert hours(found, fleet.now) == 8_000


@pytest.mark.parametrize("seed", range(6))
def test_wherever_nodes_go_each_is_charged_with_what_stood_below_it(seed: int) -> None:
    """Names are few, so that paths are taken over; an hour at a time."""
    rng = random.Random(seed)
    LedgerClock.objects.create(pk=1, at=NOON, began_at=NOON, decided_at=NOON)
    top = builders.quota("acme")
    groups = [builders.quota(name, parent=top) for name in ("a", "b")]
    leaves = [builders.quota(name, parent=parent) for parent in groups for name in ("x", "y")]
    QuotaNode.objects.update(created_at=NOON - HOUR)
    for place, leaf in enumerate(leaves):
        used(leaf, NOON, None, milli=1000 * 2**place, job=f"j-{place}")
    expected: dict[int, int] = defaultdict(int)
    now = NOON
    for _ in range(12):
        above = dict(QuotaNode.objects.values_list("pk", "parent_id"))
        for place, leaf in enumerate(leaves):
            at: int | None = leaf.pk
            while at is not None:
                expected[at] += 1000 * 2**place
                at = above[at]
        now += HOUR
        node = rng.choice([*groups, *leaves])
        parent = rng.choice([top, *groups]) if node in leaves else top
        names = {"a", "b", "c", "x", "y", "z"} - set(QuotaNode.objects.filter(parent=parent).exclude(pk=node.pk).values_list("name", flat=True))
        name = rng.choice(sorted(names))
        if QuotaNode.objects.filter(pk=node.pk).exclude(parent=parent, name=name).exists():
            moved(node, name, now, QuotaNode.objects.get(pk=parent.pk))

    rows = {node.pk: node for node in QuotaNode.objects.all()}
    budgets = [
        Budget.objects.create(public_id=f"b-{key}", quota=node, name="b", unit="gpu_hours", amount=1000, period="year") for key, node in rows.items()
    ]
    book = price_book()
    counted = {one.quota_id: used_between(one, NOON, now, book).milli_millis // MILLI_MILLIS_PER_MILLI_HOUR for one in budgets}
    assert counted == dict(expected)
    assert {one.budget.quota_id: one.used for one in standings(budgets, book, now)} == dict(expected)

    known = set(QuotaPath.objects.values_list("node_id", "path", "until"))
    assert known
    QuotaPath.objects.all().delete()
    importlib.import_module("quotas.migrations.0005_paths_that_nodes_had_before").from_versions(apps, None)
    assert set(QuotaPath.objects.values_list("node_id", "path", "until")) == known, "an upgrade finds them in the versions"
