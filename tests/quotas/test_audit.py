"""Who sees which entry of the audit log, also after the tree has changed."""

import pytest
from django.test import Client
from django.urls import reverse

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode, Role
from quotas.permissions import access_for_user
from quotas.presenters import changes_of
from quotas.selectors.audit import audit_list
from quotas.services.nodes import node_move, node_update, node_values
from quotas.services.roles import role_grant
from tests import builders
from tests.builders import NOON
from tests.personas import Personas


@pytest.fixture
def changed(personas: Personas) -> AuditEntry:
    """A change of acme/research/nlp before anything moves."""
    node = personas.nodes["acme/research/nlp"]
    node_update(access=personas.access("superuser"), node=node, values=node_values(node), revision=1, reason="Agreed in May", now=NOON)
    return AuditEntry.objects.get(action="quota.update")


def _move(personas: Personas, path: str, parent: str, name: str) -> None:
    node = QuotaNode.objects.get(pk=personas.nodes[path].pk)
    above = QuotaNode.objects.get(pk=personas.nodes[parent].pk)
    node_move(access=personas.access("superuser"), node=node, parent=above, name=name, revision=node.revision, now=NOON)


def _sees(personas: Personas, name: str) -> set[str]:
    return set(audit_list(personas.access(name)).values_list("action", flat=True))


def test_an_entry_keeps_the_key_and_the_path_of_its_node(personas: Personas, changed: AuditEntry):
    assert (changed.quota_id, changed.quota_path) == (personas.nodes["acme/research/nlp"].pk, "acme/research/nlp")


@pytest.mark.parametrize("path", ["acme/research", "acme/research/nlp"])
def test_after_a_rename_the_admin_sees_what_was_there_before(personas: Personas, changed: AuditEntry, path: str):
    node = personas.nodes[path]
    role_grant(access=personas.access("superuser"), node=node, role=Role.VIEWER, user=personas.users["stranger"], now=NOON)

    _move(personas, path, "acme" if path == "acme/research" else "acme/research", "renamed")

    assert {"quota.update", "role.grant", "quota.move"} <= _sees(personas, "quota_admin")
    assert personas.client("quota_admin").get(reverse("audit-entry", args=[changed.pk])).status_code == 200


def test_after_a_move_the_new_place_sees_the_past_and_the_old_place_keeps_it(personas: Personas, changed: AuditEntry):
    host = builders.person("host")
    builders.role(host, Role.QUOTA_ADMIN, personas.nodes["acme/product"])
    assert not audit_list(access_for_user(host)).exists()

    _move(personas, "acme/research/nlp", "acme/product", "nlp")

    assert audit_list(access_for_user(host)).filter(pk=changed.pk).exists()
    assert {"quota.update", "quota.move_away"} <= _sees(personas, "quota_admin")
    assert "quota.move" not in _sees(personas, "quota_admin")


def test_the_old_place_keeps_its_word_of_a_departure_when_it_is_renamed_itself(personas: Personas):
    _move(personas, "acme/research/nlp", "acme/product", "nlp")
    _move(personas, "acme/research", "acme", "science")

    assert "quota.move_away" in _sees(personas, "quota_admin")


def test_the_list_of_a_subtree_holds_its_past_too(personas: Personas, changed: AuditEntry):
    _move(personas, "acme/research/nlp", "acme/research", "language")

    def listed(subtree: str) -> str:
        return personas.client("quota_admin").get(reverse("audit"), {"subtree": subtree}).content.decode()

    assert "Agreed in May" in listed("acme/research/language")
    assert "Agreed in May" in listed("acme/research/nlp")
    assert "Agreed in May" not in listed("acme/research/vision")


def test_what_concerns_no_subtree_is_for_those_who_see_everything(personas: Personas):
    audit_record(actor=SYSTEM, action="fleet.wide", kind="node", object_id="n-1")

    assert "fleet.wide" in _sees(personas, "operator")
    assert "fleet.wide" not in _sees(personas, "quota_admin")


def test_over_the_api_it_is_the_same(personas: Personas, changed: AuditEntry):
    _move(personas, "acme/research", "acme", "science")
    client: Client = personas.client("quota_admin")

    found = client.get("/api/v1/audit", {"subtree": "acme/science"}).json()["items"]

    assert changed.pk in [row["id"] for row in found]


@pytest.mark.parametrize(
    ("field", "kept", "told"),
    [
        ("gpus_milli", 16_500, ("gpus", "16.5")),
        ("price_micros", 240_000, ("price", "USD 0.24")),
        ("price_micros", 1_240_001, ("price", "USD 1.240001")),
        ("effective_nanos", 525_152_261_661_307, ("effective", "USD 525,152.261661307")),
        ("notice_s", 600, ("notice", "10m")),
        ("notice_s", 0, ("notice", "0s")),
        ("notice_s", 90_061, ("notice", "90061s")),
        ("duration_ms", 90_000, ("duration", "90s")),
        ("duration_ms", 90_001, ("duration", "90001 ms")),
        ("starts_at", "2026-11-30T08:00:00+01:00", ("starts_at", "2026-11-30 07:00:00 UTC")),
        ("starts_at", "2026-11-30T08:00:00.250000+01:00", ("starts_at", "2026-11-30 07:00:00.250000 UTC")),
        ("notice_s", None, ("notice", None)),
        ("limits", {"gpus_milli": 8000}, ("limits", {"gpus_milli": 8000})),
        ("window_s", "as before", ("window_s", "as before")),
        ("name", "2026-11-30T08", ("name", "2026-11-30T08")),
    ],
)
def test_what_changed_is_told_in_the_units_of_the_pages(settings, field: str, kept: object, told: tuple[str, object]):
    settings.CURRENCY = "USD"
    entry = AuditEntry(after={field: kept})

    (change,) = changes_of(entry)

    assert (change["field"], change["after"]) == told
