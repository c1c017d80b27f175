"""The tree as a file: what is written is read back as it was, what is edited becomes a draft, and every fault is told at once."""

import pytest
import yaml

from quotas.models import QuotaChange, QuotaNode, QuotaShare
from tests.personas import Personas

pytestmark = pytest.mark.django_db
H100 = "H100-SXM-80GB"


@pytest.fixture
def tree(personas: Personas) -> Personas:
    for path, milli in {"acme": 16_000, "acme/research": 8_000, "acme/research/nlp": 4_500, "acme/product": None}.items():
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=milli or 0, limit_milli=20_000)
    QuotaNode.objects.filter(path="acme/product").update(title="=Product, and more", overcommit=True, preempt_min_runtime_s=60)
    return personas


def _file(tree: Personas, form: str, who: str = "superuser") -> str:
    return tree.client(who).get(f"/api/v1/quota-file?format={form}").json()["text"]


def _import(tree: Personas, text: str, form: str = "yaml", who: str = "superuser", **options: object):
    body = {"format": form, "text": text, "reason": "Test", **options}
    return tree.client(who).post("/api/v1/quota-file", body, content_type="application/json")


@pytest.mark.parametrize("form", ["yaml", "csv"])
def test_what_is_exported_changes_nothing_when_imported(tree: Personas, form: str):
    answer = _import(tree, _file(tree, form), form, archive_missing=True)

    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"path": "text", "message": "The tree is as the file says: nothing changes."}]


@pytest.mark.parametrize("form", ["yaml", "csv"])
def test_an_edited_file_becomes_a_draft_with_the_difference(tree: Personas, form: str):
    text = _file(tree, form).replace("4.5", "6")

    tried = _import(tree, text, form, dry_run=True).json()
    assert tried["change"] is None and QuotaChange.objects.count() == 0
    made = _import(tree, text, form).json()

    assert [(line["path"], line["before"], line["after"]) for line in made["lines"]] == [("acme/research/nlp", 4_500, 6_000)]
    assert QuotaChange.objects.get(public_id=made["change"]).reason == "Test"


def test_nodes_are_made_moved_renamed_and_archived_by_a_file(tree: Personas):
    document = yaml.safe_load(_file(tree, "yaml"))
    rows = {row["path"]: row for row in document["nodes"]}
    rows["acme/research/nlp"]["path"] = "acme/product/text"
    rows["acme/product"]["shares"][H100]["guaranteed"] = 8
    del rows["acme/research/vision"]
    nodes = [*rows.values(), {"path": "acme/fresh", "kind": "department"}, {"path": "acme/fresh/one", "kind": "team"}]

    lines = _import(tree, yaml.safe_dump({"nodes": nodes}), archive_missing=True).json()["lines"]

    assert {(line["path"], line["what"]) for line in lines if line["what"]} == {
        ("acme/product/text", "moved"),
        ("acme/research/vision", "archived"),
        ("acme/fresh", "created"),
        ("acme/fresh/one", "created"),
    }


FIFTEEN = """
extra: 1
nodes:
- {path: acme, kind: org, shares: {H100-SXM-80GB: {guaranteed: 16}}}
- {path: acme/research, kind: team, colour: blue}
- {path: acme/research/nlp, kind: squad}
- {path: acme/product, kind: department, weight: heavy}
- {path: acme/product/search, kind: team, shares: {H100-SXM-80GB: {guaranteed: many}}}
- {path: acme/product/Search Two, kind: team}
- {path: acme/nowhere/team, kind: team}
- {path: acme/research, kind: department}
- {path: acme/a, kind: department, priority: -1}
- {path: acme/b, kind: department, shares: {H100-SXM-80GB: {guaranteed: 8, limit: 4}}}
- {path: acme/c, kind: department, shares: {"bad type!": {guaranteed: 0}}}
- {path: acme/d, kind: department, default_class: quick}
- {path: acme/e, kind: department, policy: {half_life_s: 60}}
- {path: acme/f, kind: department, shares: {H100-SXM-80GB: {garantee: 8}}}
- {path: acme/g, kind: department, id: q-999999}
- {kind: team}
- {path: acme/h, kind: department, shares: {H100-SXM-80GB: {guaranteed: 99}}}
"""


def test_an_import_with_fifteen_faults_lists_all(tree: Personas):
    answer = _import(tree, FIFTEEN)

    assert answer.status_code == 422
    places = {error["path"] for error in answer.json()["errors"]}
    wanted = {
        "extra",
        "nodes.1.colour",
        "nodes.2.kind",
        "nodes.3.weight",
        "nodes.4.shares.H100-SXM-80GB.guaranteed",
        "nodes.5.name",
        "nodes.6.path",
        "nodes.7.path",
        "nodes.8.priority",
        "nodes.9.shares.H100-SXM-80GB.limit_milli",
        "nodes.10.shares.bad type!",
        "nodes.11.default_class",
        "nodes.12.policy",
        "nodes.13.shares.H100-SXM-80GB.garantee",
        "nodes.14.id",
        "nodes.15.path",
        "nodes.16.shares.H100-SXM-80GB.guaranteed_milli",
    }
    assert wanted <= places, wanted - places
    assert QuotaChange.objects.count() == 0


def test_a_file_of_nonsense_is_told_as_such(tree: Personas):
    for text, form in (("a: [", "yaml"), ("a: &a [1]\nb: *a", "yaml"), ("nodes: 3", "yaml"), ("x,y\n1,2", "csv"), ("path\nacme\nacme,1,2", "csv")):
        answer = _import(tree, text, form)
        assert answer.status_code == 422, text


def test_others_nodes_are_neither_exported_nor_touched(tree: Personas):
    text = _file(tree, "yaml", "quota_admin")
    assert "product" not in text and "acme/research/vision" in text

    answer = _import(tree, text.replace("kind: team", "kind: team\n  weight: 2", 1), who="quota_admin", archive_missing=True)
    assert answer.status_code == 200, answer.content
    assert {line["path"] for line in answer.json()["lines"]} <= {"acme/research/nlp", "acme/research/vision"}


def test_the_page_takes_a_file_and_leads_to_the_change(tree: Personas):
    client = tree.client("superuser")
    text = client.get("/quotas/export/").content.decode().replace("4.5", "6")

    answer = client.post("/quotas/import/", {"text": text, "format": "yaml"})
    assert answer["Location"].startswith("/quotas/changes/qc-")
    assert "2 problems to fix" in client.post("/quotas/import/", {"text": "nodes: [{kind: x}, 3]", "format": "yaml"}).content.decode()


def test_a_file_that_is_too_large_is_refused_with_the_size_that_is_taken(tree: Personas):
    longer = _import(tree, "a" * 8_000_001)
    assert longer.status_code == 422
    assert longer.json()["errors"] == [{"path": "text", "message": "At most 8000000 characters."}]

    beyond = tree.client("superuser").post("/api/v1/quota-file", b" " * (16 * 1024 * 1024 + 1), content_type="application/json")
    assert beyond.status_code == 413
    assert "16 MiB" in beyond.json()["detail"]
