"""The rules of the quota tree, where they are written."""

import threading

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, connection, transaction

from gpufleet.core.audit import Actor
from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry, Change
from quotas.models import QuotaNode, QuotaShare
from quotas.permissions import Access, Can, Grant
from quotas.rules import NodeValues, Share
from quotas.services.nodes import node_archive, node_create, node_move, node_restore, node_update, node_values
from tests import builders
from tests.builders import NOON
from tests.personas import Personas


def _values(kind: str = "team", **amounts: object) -> NodeValues:
    """Shares by type: a number is the guarantee, a pair guarantee and limit."""
    shares = {name: Share(*(amount if isinstance(amount, tuple) else (amount,))) for name, amount in amounts.items()}  # type: ignore[arg-type]
    return NodeValues(kind, shares=shares)


def _promise(node: QuotaNode, **amounts: int | None) -> None:
    for gpu_type, milli in amounts.items():
        QuotaShare.objects.create(node=node, gpu_type=gpu_type, guaranteed_milli=milli)


def _fault(call, *arguments, **keywords) -> dict[str, list[str]]:
    with pytest.raises(ValidationError) as raised:
        call(*arguments, **{"now": NOON} | keywords)
    return raised.value.message_dict


@pytest.fixture
def root(personas: Personas) -> Access:
    return personas.access("superuser")


def test_children_are_never_promised_more_than_their_parent_has(personas: Personas, root: Access):
    _promise(personas.nodes["acme"], H100=16_000, L40S=4_000)
    node_update(access=root, node=personas.nodes["acme/research"], values=_values("department", H100=10_000), revision=1, now=NOON)

    fault = _fault(
        node_update, access=root, node=personas.nodes["acme/product"], values=_values("department", H100=6_500, A100=1_000), revision=1, now=NOON
    )

    assert fault == {
        "shares.H100.guaranteed_milli": ["With it, all below acme are promised 16.5 of H100; acme itself has 16."],
        "shares.A100.guaranteed_milli": ["With it, all below acme are promised 1 of A100; acme itself has 0."],
    }
    assert not QuotaShare.objects.filter(node=personas.nodes["acme/product"]).exists()


def test_an_unlimited_promise_fits_only_below_an_unlimited_one(personas: Personas, root: Access):
    node = personas.nodes["acme/research"]
    assert (
        "unlimited"
        in _fault(node_update, access=root, node=node, values=_values("department", H100=None), revision=1)["shares.H100.guaranteed_milli"][0]
    )

    _promise(personas.nodes["acme"], H100=None)
    node_update(access=root, node=node, values=_values("department", H100=None), revision=1, now=NOON)


def test_a_parent_can_not_shrink_below_what_its_children_were_promised(personas: Personas, root: Access):
    _promise(personas.nodes["acme"], H100=16_000)
    _promise(personas.nodes["acme/research"], H100=10_000)

    assert (
        "promised 10 of H100"
        in _fault(node_update, access=root, node=personas.nodes["acme"], values=_values("org", H100=9_000), revision=1)[
            "shares.H100.guaranteed_milli"
        ][0]
    )


def test_overcommit_lets_children_be_promised_more(personas: Personas, root: Access):
    values = NodeValues("org", overcommit=True, shares={"H100": Share(1_000)})
    assert "overcommitted" in _fault(node_update, access=root, node=personas.nodes["acme"], values=values, revision=1)["reason"][0]
    acme = node_update(access=root, node=personas.nodes["acme"], values=values, revision=1, reason="Trial", now=NOON)
    node_update(access=root, node=personas.nodes["acme/research"], values=_values("department", H100=5_000), revision=1, now=NOON)

    assert (
        "overcommit" in _fault(node_update, access=root, node=acme, values=_values("org", H100=1_000), revision=2)["shares.H100.guaranteed_milli"][0]
    )


def test_a_title_can_be_changed_although_the_promises_are_too_many(personas: Personas, root: Access):
    """What was imported beyond the rules must still be editable; only a promise that changes is measured."""
    _promise(personas.nodes["acme/research"], H100=10_000)
    node = personas.nodes["acme/research"]

    changed = node_update(
        access=root, node=node, values=NodeValues("department", title="Science", shares=node_values(node).shares), revision=1, now=NOON
    )

    assert changed.title == "Science"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (_values(H100=(2_000, 1_000)), "shares.H100.limit_milli"),
        (_values(H100=-1), "shares.H100.guaranteed_milli"),
        (_values(H100=10**12), "shares.H100.guaranteed_milli"),
        (NodeValues("team", weight=-1), "weight"),
        (NodeValues("team", priority=10**9), "priority"),
        (NodeValues("team", title="x" * 121), "title"),
        (NodeValues("team", shares={"a/b": Share(1)}), "shares.a/b"),
        (NodeValues("org"), "kind"),
        (NodeValues("galaxy"), "kind"),
    ],
    ids=str,
)
def test_bad_values_are_refused_at_their_field(personas: Personas, root: Access, values: NodeValues, field: str):
    assert field in _fault(node_create, access=root, parent=personas.nodes["acme/research"], name="x", values=values, now=NOON)


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "ü", "-a", "x" * 61, "..", "a\n"])
def test_bad_names_are_refused(personas: Personas, root: Access, name: str):
    assert "name" in _fault(node_create, access=root, parent=personas.nodes["acme/research"], name=name, values=_values(), now=NOON)


def test_there_is_one_top(personas: Personas, root: Access):
    assert "parent" in _fault(node_create, access=root, parent=None, name="other", values=_values("org"), now=NOON)


def test_a_second_top_is_refused_by_the_database_too(personas: Personas):
    """Two that plant an empty tree at once see no top, either of them."""
    with pytest.raises(IntegrityError), transaction.atomic():
        builders.quota("other")


def test_the_top_is_never_archived(personas: Personas, root: Access):
    """With it would end the roles of those who could restore it."""
    QuotaNode.objects.exclude(depth=0).update(archived_at=NOON)

    assert (
        "The root of the tree cannot be archived" in _fault(node_archive, access=root, node=personas.nodes["acme"], revision=1, now=NOON)["node"][0]
    )


def test_the_first_node_is_the_top(db):
    planter = Access(Actor(None, "test", "test"), (Grant("", frozenset(Can)),))

    assert node_create(access=planter, parent=None, name="acme", values=_values("org"), now=NOON).path == "acme"


def test_what_has_jobs_stays_a_leaf(personas: Personas, root: Access):
    leaf = personas.nodes["acme/product/search"]
    builders.job(on=leaf)

    assert "jobs" in _fault(node_create, access=root, parent=leaf, name="x", values=_values("project"), now=NOON)["parent"][0]
    assert "jobs" in _fault(node_move, access=root, node=personas.nodes["acme/research/nlp"], parent=leaf, name="nlp", revision=1)["parent"][0]
    assert "Jobs" in _fault(node_archive, access=root, node=leaf, revision=1, now=NOON)["node"][0]


def test_a_move_rewrites_every_path_below(personas: Personas, root: Access):
    deep = builders.quota("exp", parent=personas.nodes["acme/research/nlp"])
    lookalike = builders.quota("nlp-2", parent=personas.nodes["acme/research"])

    node_move(access=root, node=personas.nodes["acme/research/nlp"], parent=personas.nodes["acme/product"], name="language", revision=1, now=NOON)

    deep.refresh_from_db()
    lookalike.refresh_from_db()
    assert (deep.path, deep.depth) == ("acme/product/language/exp", 3)
    assert lookalike.path == "acme/research/nlp-2"
    assert [entry.action for entry in AuditEntry.objects.order_by("id")] == ["quota.move", "quota.move_away"]
    assert {row["id"] for row in Change.objects.latest("rev").rows} >= {deep.pk, personas.nodes["acme/research/nlp"].pk}


def test_roles_follow_the_new_place(personas: Personas, root: Access):
    node_move(access=root, node=personas.nodes["acme/research/nlp"], parent=personas.nodes["acme/product"], name="nlp", revision=1, now=NOON)

    assert not personas.access("quota_admin").can(Can.SEE, "acme/product/nlp")
    assert personas.access("viewer").can(Can.SEE, "acme/product/nlp")


def test_no_node_lands_below_itself(personas: Personas, root: Access):
    below = builders.quota("x", parent=personas.nodes["acme/research/nlp"])

    assert "below itself" in _fault(node_move, access=root, node=personas.nodes["acme/research"], parent=below, name="r", revision=1)["parent"][0]


def test_a_moved_guarantee_must_fit_in_its_new_place(personas: Personas, root: Access):
    _promise(personas.nodes["acme/research/nlp"], H100=1_000)

    fault = _fault(node_move, access=root, node=personas.nodes["acme/research/nlp"], parent=personas.nodes["acme/product"], name="nlp", revision=1)

    assert "shares.H100.guaranteed_milli" in fault
    assert QuotaNode.objects.filter(path="acme/research/nlp").exists()


def test_a_move_to_a_taken_name_is_refused(personas: Personas, root: Access):
    fault = _fault(
        node_move, access=root, node=personas.nodes["acme/research/nlp"], parent=personas.nodes["acme/research"], name="vision", revision=1
    )

    assert fault == {"name": ["A node of this name is already there."]}


def test_archiving_frees_the_guarantee_and_restoring_asks_for_room(personas: Personas, root: Access):
    _promise(personas.nodes["acme/research"], H100=4_000)
    _promise(personas.nodes["acme/research/nlp"], H100=4_000)
    nlp = node_archive(access=root, node=personas.nodes["acme/research/nlp"], revision=1, now=NOON)
    node_update(access=root, node=personas.nodes["acme/research/vision"], values=_values(H100=1_000), revision=1, now=NOON)

    assert not personas.access("viewer").grants
    assert "shares.H100.guaranteed_milli" in _fault(node_restore, access=root, node=nlp, revision=2)
    assert "name" in _fault(node_create, access=root, parent=personas.nodes["acme/research"], name="nlp", values=_values(), now=NOON)
    node_update(access=root, node=personas.nodes["acme/research/vision"], values=_values(), revision=2, now=NOON)
    assert node_restore(access=root, node=nlp, revision=2, now=NOON).archived_at is None


def test_what_has_children_is_not_archived(personas: Personas, root: Access):
    assert "below" in _fault(node_archive, access=root, node=personas.nodes["acme/research"], revision=1, now=NOON)["node"][0]


def test_a_stale_revision_is_refused(personas: Personas, root: Access):
    node = personas.nodes["acme/research"]
    node_update(access=root, node=node, values=NodeValues("department", title="One"), revision=1, now=NOON)

    with pytest.raises(Conflict):
        node_update(access=root, node=node, values=NodeValues("department", title="Two"), revision=1, now=NOON)


def test_nobody_decides_their_own_promise(personas: Personas):
    """The quota admin of research may not raise what research itself is promised, or how it weighs."""
    access, research = personas.access("quota_admin"), personas.nodes["acme/research"]
    for values in (_values("department", H100=1), NodeValues("department", weight=2), NodeValues("department", priority=1)):
        with pytest.raises(PermissionDenied):
            node_update(access=access, node=research, values=values, revision=1, now=NOON)
    with pytest.raises(PermissionDenied):
        node_archive(access=access, node=research, revision=1, now=NOON)
    with pytest.raises(PermissionDenied):
        node_move(access=access, node=research, parent=personas.nodes["acme"], name="r", revision=1, now=NOON)

    assert node_update(access=access, node=research, values=NodeValues("department", title="Science"), revision=1, now=NOON).title == "Science"


def test_a_move_needs_the_right_at_both_ends(personas: Personas):
    with pytest.raises(PermissionDenied):
        node_move(
            access=personas.access("quota_admin"),
            node=personas.nodes["acme/research/nlp"],
            parent=personas.nodes["acme/product"],
            name="nlp",
            revision=1,
            now=NOON,
        )


def test_a_write_keeps_before_and_after(personas: Personas, root: Access):
    _promise(personas.nodes["acme"], H100=9_000)
    node_update(
        access=root,
        node=personas.nodes["acme/research"],
        values=_values("department", H100=(2_000, 8_000)),
        revision=1,
        reason="Plan of May",
        now=NOON,
    )

    entry = AuditEntry.objects.get()
    assert (entry.action, entry.object_id, entry.quota_path) == ("quota.update", personas.nodes["acme/research"].public_id, "acme/research")
    assert entry.after == {"H100.guaranteed_milli": 2_000, "H100.limit_milli": 8_000}
    assert entry.reason == "Plan of May"


@pytest.mark.django_db(transaction=True)
def test_two_siblings_that_grow_at_once_do_not_both_fit(personas: Personas):
    """Each fits by itself, both together do not: one of the two writers must be refused."""
    _promise(personas.nodes["acme"], H100=10_000)
    root = personas.access("superuser")
    start, outcomes = threading.Barrier(2), []

    def grow(path: str) -> None:
        try:
            start.wait(10)
            node_update(access=root, node=personas.nodes[path], values=_values("department", H100=6_000), revision=1, now=NOON)
            outcomes.append("written")
        except ValidationError:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=grow, args=[path]) for path in ("acme/research", "acme/product")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(outcomes) == ["refused", "written"]


def test_paths_never_differ_by_case_alone(personas: Personas):
    with pytest.raises(IntegrityError), transaction.atomic():
        builders.quota("NLP", parent=personas.nodes["acme/research"])
