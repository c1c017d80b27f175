"""The editor: branches that unfold, and edits that become one change or come back with what is wrong."""

import json
from datetime import timedelta

import pytest

from gpufleet.core.times import now
from quotas.chargeback.months import Span, month_at
from quotas.chargeback.report import node_costs
from quotas.chargeback.sums import sums_write
from quotas.models import ChargeLine, ChargeMonth, QuotaChange, QuotaNode, QuotaShare
from tests import builders
from tests.personas import Personas
from tests.quotas.test_pages import applied

pytestmark = pytest.mark.django_db
H100 = "H100-SXM-80GB"


@pytest.fixture
def tree(personas: Personas) -> Personas:
    builders.node("n0", gpus=8)
    for path, milli in {"acme": 8_000, "acme/research": 8_000, "acme/research/nlp": 4_000}.items():
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=milli)
    return personas


def _send(tree: Personas, who: str, edits: list[object], seen: dict[str, int] | None = None):
    return tree.client(who).post("/quotas/editor/", {"edits": json.dumps({"edits": edits, "seen": seen or {}}), "reason": "Test"})


def _edit(tree: Personas, path: str, **share: int | None) -> dict[str, object]:
    return {"op": "update", "node": tree.nodes[path].public_id, "set": {"shares": {H100: share}}}


def test_the_top_levels_are_open_and_others_unfold(tree: Personas):
    client = tree.client("superuser")
    page = client.get("/quotas/editor/").content.decode()
    assert "acme/research" in page and 'data-path="acme/research/nlp"' not in page

    part = client.get(f"/quotas/editor/?below={tree.nodes['acme/research'].public_id}").content.decode()
    assert 'data-path="acme/research/nlp"' in part and "<html" not in part
    opened = client.get(f"/quotas/editor/?open={tree.nodes['acme/research'].public_id}").content.decode()
    assert 'data-path="acme/research/nlp"' in opened


def test_what_is_decided_above_is_no_cell(tree: Personas):
    page = tree.client("quota_admin").get("/quotas/editor/").content.decode()

    assert "Weight of nlp" in page
    assert "Weight of research" not in page


def test_edits_become_one_change(tree: Personas):
    answer = _send(
        tree, "superuser", [_edit(tree, "acme/research/nlp", guaranteed_milli=2_000), _edit(tree, "acme/research/vision", guaranteed_milli=2_000)]
    )

    change = QuotaChange.objects.get()
    assert answer["Location"] == f"/quotas/changes/{change.public_id}/"
    assert len(change.edits) == 2 and change.reason == "Test"


def test_nodes_are_added_moved_and_archived_as_one_change(tree: Personas):
    nodes = tree.nodes
    edits: list[object] = [
        {"op": "create", "node": "new-1", "parent": "acme/product", "name": "ads", "set": {"kind": "team"}},
        {"op": "move", "node": nodes["acme/research/vision"].public_id, "parent": "new-1", "name": "eyes"},
        {"op": "update", "node": "new-1", "set": {"weight": 3}},
        {"op": "archive", "node": nodes["acme/research/nlp"].public_id},
    ]
    answer = _send(tree, "superuser", edits)

    assert answer.status_code == 302, answer.content.decode()
    change = QuotaChange.objects.get()
    page = tree.client("superuser").get(answer["Location"]).content.decode()
    assert "acme/product/ads/eyes" in page and len(change.edits) == 4
    wrong = _send(tree, "superuser", [edits[0] | {"name": ""}, edits[1] | {"parent": "acme/nowhere"}]).content.decode()  # type: ignore[operator]
    assert 'data-fault="new-1" data-field="name"' in wrong
    assert f'data-fault="{nodes["acme/research/vision"].public_id}" data-field="parent"' in wrong and "There is no such node." in wrong


def test_nodes_are_found_with_what_lies_above_them(tree: Personas):
    rows = tree.client("superuser").get("/quotas/editor/?rows=1&q=nlp").content.decode()

    assert [part.split('"')[0] for part in rows.split('data-path="')[1:]] == ["acme", "acme/research", "acme/research/nlp"]
    assert "<html" not in rows
    assert "No node matches" in tree.client("superuser").get("/quotas/editor/?q=nothing").content.decode()


def test_what_a_node_costs_this_month_is_shown_to_those_who_may_see_it(tree: Personas):
    span = Span(month_at(now()))
    rated_to = span.start + (span.end - span.start) / 4
    month = ChargeMonth.objects.create(first=span.first, currency="USD", rated_to=rated_to)
    for path, units in {"acme/research/nlp": 100, "acme/research/vision": 20, "acme/product/search": 7}.items():
        facts = {"gpu_type": H100, "share_class": "guaranteed", "preemptible": True, "tier": "whole", "cluster": "c", "milli_millis": 1}
        nanos = dict.fromkeys(("list_nanos", "contracted_nanos", "effective_nanos"), units * 10**9)
        ChargeLine.objects.create(month=month, day=span.first, job="j-1", quota=tree.nodes[path], quota_path=path, **facts, **nanos)
    sums_write(month)

    page = tree.client("superuser").get(f"/quotas/editor/?open={tree.nodes['acme/research'].public_id}").content.decode()
    assert "Cost this month (USD)" in page
    shown = [row.split("</td>")[0] for row in page.split('<td class="num cost">')[1:]]
    assert [row.split("<br>")[0] for row in shown[:2]] == ["127.00", "7.00"]
    assert "508.00 at this pace" in shown[0]
    own = node_costs(tree.access("quota_admin"), now=rated_to)
    assert own is not None and dict(own.so_far) == {
        f"acme/research{below}": units * 10**9 for below, units in {"": 120, "/nlp": 100, "/vision": 20}.items()
    }
    assert node_costs(tree.access("viewer"), now=rated_to) is None
    before = ChargeMonth.objects.create(first=month_at(span.start - timedelta(days=1)), currency="USD", rated_to=span.start)
    facts |= {"corrects": before, "day": before.first, "quota": tree.nodes["acme/product"], "quota_path": "acme/product"}
    ChargeLine.objects.create(month=month, job="j-1", **facts, **dict.fromkeys(nanos, -4 * 10**9))
    sums_write(month)
    corrected = node_costs(tree.access("superuser"), now=rated_to)
    assert corrected is not None and (corrected.so_far["acme"], corrected.ahead("acme")) == (123 * 10**9, 504 * 10**9), "a correction comes once"


def test_refused_edits_come_back_with_every_fault(tree: Personas):
    answer = _send(tree, "superuser", [_edit(tree, "acme/research/nlp", guaranteed_milli=9_000), _edit(tree, "acme/product", limit_milli=-1)])

    page = answer.content.decode()
    assert answer.status_code == 422
    assert "2 problems to fix" in page and "acme/research/nlp: " in page and "acme/product: " in page
    assert "guaranteed_milli" in page.split('name="edits"')[1][:400], "the edits are there to go on with"
    assert _send(tree, "superuser", []).status_code == 422
    assert tree.client("superuser").post("/quotas/editor/", {"edits": "{"}).status_code == 422


def test_the_second_of_two_admins_is_told_what_changed(tree: Personas):
    node = QuotaNode.objects.get(path="acme/research/nlp")
    seen = {node.public_id: node.revision}
    form = {"kind": "team", "weight": 3, "priority": 100, "revision": node.revision}
    applied(tree.client("superuser"), f"/quotas/{node.public_id}/edit/", form | {f"share-{H100}-guaranteed": "4"})

    answer = _send(tree, "quota_admin", [_edit(tree, "acme/research/nlp", guaranteed_milli=2_000)], seen)

    page = answer.content.decode()
    assert answer.status_code == 409
    assert f'data-meanwhile="{node.public_id}" data-field="weight">acme/research/nlp by Superuser: weight 1 → 3<' in page
    assert "problem" not in page.split("<main")[1]
    assert not QuotaChange.objects.exclude(state="applied").exists()

    kept = answer.context["sent"]
    assert tree.client("quota_admin").post("/quotas/editor/", {"edits": kept}).status_code == 302
    assert QuotaChange.objects.exclude(state="applied").get().edits[0]["set"] == {"shares": {H100: {"guaranteed_milli": 2_000}}}
