"""Changes of the quota tree: drafts, approval, dates, conflicts and reverts."""

import os
import random
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from itertools import takewhile

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Sum

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict, Stale
from quotas.drafts import Edit, Tree, state_of, tree_edited, violations
from quotas.models import ChangeState, QuotaChange, QuotaNode, QuotaShare
from quotas.permissions import Access
from quotas.rules import NodeValues, Share
from quotas.selectors.changes import applied_lines, change_list
from quotas.services.changes import (
    Overtaken,
    Wanted,
    change_apply,
    change_approve,
    change_draft,
    change_propose,
    change_revert,
    change_revise,
    change_schedule,
    changes_turn,
)
from quotas.services.nodes import node_update, node_values
from quotas.services.writing import tree_at, tree_now
from scheduler.models import Attempt, Job, JobState, Placement, PlanRecord
from scheduler.services.jobs.jobs import attempt_ended, job_create
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.personas import Personas
from tests.scheduler.loop.worlds import Loop

CAPACITY = {"H100": 64_000}
LATER = NOON + timedelta(hours=1)


@pytest.fixture
def root(personas: Personas) -> Access:
    for path, milli in {"acme": 32_000, "acme/research": 16_000, "acme/research/nlp": 8_000, "acme/research/vision": 4_000}.items():
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type="H100", guaranteed_milli=milli)
    return personas.access("superuser")


def _guarantee(personas: Personas, path: str, milli: int) -> dict[str, object]:
    return {"op": "update", "node": personas.nodes[path].public_id, "set": {"shares": {"H100": {"guaranteed_milli": milli}}}}


def _draft(access: Access, *edits: object, **said: object):
    return change_draft(access=access, wanted=Wanted(list(edits), **said), now=NOON)  # type: ignore[arg-type]


def _apply(access: Access, change, now=NOON, capacity=CAPACITY):
    return change_apply(access=access, change=change, revision=change.revision, capacity=capacity, now=now)


def test_what_one_gives_another_may_take_in_one_change(personas: Personas, root: Access):
    """Taken alone the second edit would be refused, in whichever order they come."""
    change = _draft(root, _guarantee(personas, "acme/research/nlp", 12_000), _guarantee(personas, "acme/research/vision", 2_000))

    _apply(root, change)

    assert QuotaShare.objects.get(node__path="acme/research/nlp").guaranteed_milli == 12_000


def test_every_fault_is_told_at_its_edit(personas: Personas, root: Access):
    bad = [
        _guarantee(personas, "acme/research/nlp", 14_000),
        {"op": "update", "node": personas.nodes["acme/product"].public_id, "set": {"weight": -1}},
        {"op": "create", "node": "new", "parent": personas.nodes["acme/product"].public_id, "name": "Not A Name", "set": {"kind": "team"}},
        {"op": "archive", "node": personas.nodes["acme"].public_id},
        {"op": "move", "node": personas.nodes["acme/research"].public_id, "parent": personas.nodes["acme/research/nlp"].public_id, "name": "x"},
        {"op": "update", "node": personas.nodes["acme/product/search"].public_id, "set": {"policy": {"half_life_s": 3600}}},
    ]

    with pytest.raises(ValidationError) as raised:
        _draft(root, *bad[:4], bad[5])
    assert set(raised.value.message_dict) == {
        "edits.0.shares.H100.guaranteed_milli",
        "edits.1.weight",
        "edits.2.name",
        "edits.3.node",
        "edits.4.policy",
    }
    with pytest.raises(ValidationError) as raised:
        _draft(root, bad[4])
    assert list(raised.value.message_dict) == ["edits.0.parent"]


def test_of_two_admins_one_wins_and_the_other_is_told_what_changed(personas: Personas, root: Access):
    mine, theirs = (_draft(root, _guarantee(personas, "acme/research/nlp", milli)) for milli in (6_000, 7_000))
    _apply(root, theirs)

    with pytest.raises(Overtaken) as raised:
        _apply(root, mine)
    assert raised.value.lines == ("acme/research/nlp: H100.guaranteed 8 → 7",)

    rebased = change_revise(access=root, change=mine, wanted=Wanted(mine.edits), revision=mine.revision, now=NOON)
    _apply(root, rebased)
    assert QuotaShare.objects.get(node__path="acme/research/nlp").guaranteed_milli == 6_000


def test_what_was_revised_meanwhile_is_neither_applied_nor_written_over_unseen(personas: Personas, root: Access):
    """As of a page that still shows the edits of before."""
    seen = _draft(root, _guarantee(personas, "acme/research/nlp", 6_000))
    other = Wanted([_guarantee(personas, "acme/research/nlp", 1_000)])
    revised = change_revise(access=root, change=seen, wanted=other, revision=seen.revision, now=NOON)

    for step in (_apply, lambda access, change: change_revise(access=access, change=change, wanted=other, revision=seen.revision, now=NOON)):
        with pytest.raises(Stale):
            step(root, seen)
    assert revised.revision > seen.revision and QuotaChange.objects.get(pk=seen.pk).state == "draft"


def test_a_subtree_that_asks_for_it_is_changed_by_two_people(personas: Personas, root: Access):
    QuotaNode.objects.filter(path="acme/research").update(needs_approval=True)
    node = QuotaNode.objects.get(path="acme/research/nlp")
    with pytest.raises(Conflict, match="second person"):
        node_update(access=root, node=node, values=replace(node_values(node), title="NLP"), revision=1, now=NOON)
    change = _draft(root, _guarantee(personas, "acme/research/nlp", 6_000), reason="Budget")
    with pytest.raises(Conflict, match="second person"):
        _apply(root, change)
    change = change_propose(access=root, change=change, revision=change.revision, now=NOON)
    with pytest.raises(PermissionDenied, match="another person"):
        change_approve(access=root, change=change, revision=change.revision, now=NOON)

    change = change_approve(access=personas.access("quota_admin"), change=change, revision=change.revision, now=NOON)
    applied = _apply(root, change)

    assert (applied.state, applied.approver_name) == (ChangeState.APPLIED, "Quota Admin")


def test_an_approval_is_void_once_the_change_says_something_else(personas: Personas, root: Access):
    QuotaNode.objects.filter(path="acme").update(needs_approval=True)
    change = _draft(root, _guarantee(personas, "acme/research/nlp", 6_000))
    change = change_propose(access=root, change=change, revision=change.revision, now=NOON)
    change = change_approve(access=personas.access("quota_admin"), change=change, revision=change.revision, now=NOON)
    change = change_revise(
        access=root, change=change, wanted=Wanted([_guarantee(personas, "acme/research/nlp", 1_000)]), revision=change.revision, now=NOON
    )

    with pytest.raises(Conflict, match="second person"):
        _apply(root, change)


def test_a_change_takes_effect_at_its_time_with_the_rights_of_then(personas: Personas, root: Access):
    admin = personas.access("quota_admin")
    change = _draft(admin, _guarantee(personas, "acme/research/nlp", 6_000))
    lost = _draft(admin, _guarantee(personas, "acme/research/vision", 3_000))
    for one in (change, lost):
        change_schedule(access=admin, change=one, revision=one.revision, apply_at=LATER, capacity=CAPACITY, now=NOON)

    assert changes_turn(capacity=lambda: CAPACITY, now=NOON) == 0
    assert changes_turn(capacity=lambda: CAPACITY, now=LATER) == 2
    again = _draft(admin, _guarantee(personas, "acme/research/nlp", 5_000))
    change_schedule(access=admin, change=again, revision=again.revision, apply_at=LATER, capacity=CAPACITY, now=NOON)
    personas.users["quota_admin"].role_bindings.all().delete()

    assert changes_turn(capacity=lambda: CAPACITY, now=LATER) == 0
    again.refresh_from_db()
    assert again.state == ChangeState.FAILED


def test_more_than_is_healthy_is_promised_only_with_a_reason(personas: Personas, root: Access):
    with pytest.raises(ValidationError) as raised:
        _apply(root, _draft(root, _guarantee(personas, "acme", 65_000)))
    assert "65 GPUs of H100 would be guaranteed; 64 are healthy." in raised.value.message_dict["over_capacity"][0]

    _apply(root, _draft(root, _guarantee(personas, "acme", 65_000), over_capacity=True, reason="Nodes arrive on Monday"))
    _apply(root, _draft(root, _guarantee(personas, "acme", 64_500)))


def test_who_may_not_decide_may_not_draft(personas: Personas, root: Access):
    with pytest.raises(PermissionDenied):
        _draft(personas.access("quota_admin"), _guarantee(personas, "acme/research", 17_000))
    with pytest.raises(ValidationError, match="no such node"):
        _draft(personas.access("quota_admin"), _guarantee(personas, "acme/product/search", 1_000))


def test_the_tree_is_known_as_it_was_at_any_time(personas: Personas, root: Access):
    QuotaNode.objects.update(created_at=NOON - timedelta(days=1))
    old, _ = tree_now()
    _apply(root, _draft(root, _guarantee(personas, "acme/research/nlp", 6_000)), now=LATER)
    moved = {"op": "move", "node": personas.nodes["acme/research/nlp"].public_id, "parent": personas.nodes["acme/product"].public_id, "name": "text"}
    shares = _guarantee(personas, "acme/product", 8_000)
    _apply(root, _draft(root, moved, shares), now=LATER + timedelta(hours=1))

    assert tree_at(NOON) == old
    assert tree_at(LATER)[moved["node"]].values.shares["H100"] == Share(6_000)
    assert tree_at(LATER).paths[moved["node"]] == "acme/research/nlp"
    assert tree_at(LATER + timedelta(hours=2)) == tree_now()[0]


def test_an_applied_move_tells_both_paths_as_they_were_then(personas: Personas, root: Access):
    QuotaNode.objects.update(created_at=NOON - timedelta(days=1))
    nlp, research = (personas.nodes[path].public_id for path in ("acme/research/nlp", "acme/research"))
    moved = _draft(
        root,
        {"op": "move", "node": nlp, "parent": personas.nodes["acme/product"].public_id, "name": "text"},
        _guarantee(personas, "acme/product", 8_000),
    )
    _apply(root, moved)
    _apply(root, _draft(root, {"op": "move", "node": research, "parent": personas.nodes["acme"].public_id, "name": "science"}), now=LATER)

    lines, hidden = applied_lines(root, QuotaChange.objects.get(pk=moved.pk))

    assert [(line.before, line.after) for line in lines if line.what == "moved"] == [("acme/research/nlp", "acme/product/text")]
    assert not hidden


def test_two_nodes_change_places(personas: Personas, root: Access):
    nlp, vision, above = (personas.nodes[path].public_id for path in ("acme/research/nlp", "acme/research/vision", "acme/research"))
    _apply(root, _draft(root, *({"op": "move", "node": one, "parent": above, "name": name} for one, name in ((nlp, "vision"), (vision, "nlp")))))

    assert QuotaNode.objects.get(public_id=nlp).path == "acme/research/vision"
    assert QuotaNode.objects.get(public_id=vision).path == "acme/research/nlp"


def _random_edit(rng: random.Random, number: int) -> dict[str, object]:
    nodes = list(QuotaNode.objects.order_by("pk"))
    node, other = rng.choice(nodes), rng.choice(nodes)
    kind = rng.choice(["shares", "shares", "shares", "weight", "create", "move", "archive", "restore", "overcommit"])
    if kind == "create":
        wanted = {"kind": "project", "shares": {"H100": {"guaranteed_milli": rng.randrange(4_000)}}}
        return {"op": "create", "node": "new", "parent": node.public_id, "name": f"n{number}", "set": wanted}
    if kind == "move":
        return {"op": "move", "node": node.public_id, "parent": other.public_id, "name": node.name}
    if kind in ("archive", "restore"):
        return {"op": kind, "node": node.public_id}
    values = {
        "shares": {"shares": {rng.choice(["H100", "A100"]): {"guaranteed_milli": rng.choice([0, 1_000, 3_000, 9_000, None]), "limit_milli": None}}},
        "weight": {"weight": rng.randrange(5), "preempt_min_runtime_s": rng.choice([None, 60])},
        "overcommit": {"overcommit": rng.random() < 0.5},
    }
    return {"op": "update", "node": node.public_id, "set": values[kind]}


@pytest.mark.parametrize("seed", range(3))
def test_no_edits_leave_a_tree_against_its_rules_and_reverting_them_restores_it(personas: Personas, root: Access, seed: int):
    """Drawn edits, one change after the other; those refused leave no trace. Then all are undone, the newest first."""
    rng = random.Random(seed)
    first, _ = tree_now()
    applied = []
    for number in range(60):
        edits = [_random_edit(rng, 10 * number + place) for place in range(rng.choice([1, 1, 2]))]
        if len({edit["node"] for edit in edits}) < len(edits):
            continue
        before, _ = tree_now()
        try:
            change = _draft(root, *edits, reason="Drawn", over_capacity=True)
            applied.append(_apply(root, change))
        except ValidationError:
            assert tree_now()[0] == before
        after, rows = tree_now()
        overcommitted = any(state.values.overcommit for state in after.states.values())
        assert overcommitted or violations(_live(after)) == []
        assert {key: row.path for key, row in rows.items()} == dict(after.paths)
    assert len(applied) > 10
    for change in reversed(applied):
        _apply(root, change_revert(access=root, change=change, reason="Drawn", now=NOON))
    last, _ = tree_now()
    assert {key: state for key, state in last.states.items() if key in first.states} == first.states
    assert all(state.archived for key, state in last.states.items() if key not in first.states)


EDITS = int(os.environ.get("EDITS") or 500)


@pytest.mark.soak
def test_five_hundred_edits_beside_a_running_loop(personas: Personas, root: Access):
    """Jobs come and go while the tree is edited: the tree keeps its rules, the records agree, and nothing is reclaimed out of a guarantee."""
    seed = int(os.environ.get("SOAK_SEED") or 19)
    rng = random.Random(seed)
    for number in range(4):
        builders.node(f"n{number}", gpus=8, type_name="H100")
    loop, applied, reclaims = Loop(), 0, 0
    for number in range(EDITS):
        loop.after(seconds=rng.choice([5, 60, 400]))
        edit = _random_edit(rng, number)
        if "overcommit" in edit.get("set", {}):  # type: ignore[operator]
            continue
        try:
            _apply(root, _draft(root, edit, reason="Drawn", over_capacity=True), now=loop.now)
            applied += 1
        except ValidationError:
            pass
        if number % 4:
            continue
        _come_and_go(rng, loop)
        held = _held()
        newest = PlanRecord.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        loop.tick()
        for plan in PlanRecord.objects.filter(pk__gt=newest).order_by("pk"):
            reclaims += _reclaims_judged(plan, held, seed, number)
        for job in Job.objects.filter(state=JobState.STARTING):
            loop.up(job)
        tree, _ = tree_now()
        assert violations(_live(tree)) == [], (seed, number)
        assert number % 100 or fleet_faults() == [], (seed, number)
    assert fleet_faults() == []
    assert applied > EDITS // 5
    assert reclaims, "nothing was reclaimed: it looked at nothing"


def _come_and_go(rng: random.Random, loop: Loop) -> None:
    leaves = QuotaNode.objects.filter(archived_at__isnull=True, children__isnull=True).order_by("pk")
    if Job.objects.filter(state=JobState.QUEUED).count() < 6:
        quota, gpus = rng.choice(list(leaves)), rng.choice([1, 2, 4, 8])
        job_create(
            name="drawn",
            owner=None,
            quota=quota,
            job_class=rng.choice(["batch", "interactive"]),
            now=loop.now,
            actor=SYSTEM,
            spec={"roles": [{"name": "worker", "gpus": gpus}], "grace_s": 0},
            gpus_milli=1000 * gpus,
        )
    for run in Attempt.objects.filter(ended_at__isnull=True).order_by("pk"):
        if run.stop_asked_at is not None or rng.random() < 0.1:
            attempt_ended(attempt=run, exit_code=0, now=loop.now)


def _held() -> dict[str, tuple[str, int]]:
    """What each running job holds, by its id: in which leaf, and how much."""
    rows = Placement.objects.filter(until__isnull=True).values_list("job__public_id", "job__quota__path").annotate(milli=Sum("gpu_milli")).order_by()
    return {job: (path, milli) for job, path, milli in rows}


def _reclaims_judged(plan: PlanRecord, held: dict[str, tuple[str, int]], seed: int, number: int) -> int:
    """Whoever gave back stood above its guarantee before its last unit was taken, as seen just below the lowest common ancestor of the two.

    Jobs that the same plan starts without a reclaim of their own may have been served before it, and count.
    """
    taken: dict[str, list[int]] = defaultdict(list)
    evicted = [one for one in plan.decisions if one["action"] == "evict"]
    for one in evicted:
        if one["why"]["code"] == "reclaim":
            leaf, milli = held[one["job"]]
            asker = Job.objects.get(public_id=one["why"]["for"]).quota.path.split("/")
            steps = leaf.split("/")
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(steps, asker, strict=False)))
            taken["/".join(steps[: shared + 1])].append(milli)
    guaranteed = {share.node.path: share.guaranteed_milli or 0 for share in QuotaShare.objects.filter(gpu_type="H100").select_related("node")}
    askers = {one["why"].get("for") for one in evicted}
    fits = [one["job"] for one in plan.decisions if one["action"] == "start" and one["job"] not in askers]
    stays = [holding for job, holding in held.items() if job not in {one["job"] for one in evicted}]
    stays += Job.objects.filter(public_id__in=fits).values_list("quota__path", "gpus_milli")
    for node, gave in taken.items():
        left = sum(milli for path, milli in stays if f"{path}/".startswith(f"{node}/"))
        assert left + max(gave) > guaranteed.get(node, 0), (seed, number, node, left, gave)
    return sum(map(len, taken.values()))


def _live(tree: Tree) -> Tree:
    return Tree(state for state in tree.states.values() if not state.archived)


def test_edits_of_a_tree_that_is_only_a_value():
    one = {"id": "q-1", "parent": None, "name": "acme", "archived": False, "revision": 1, "kind": "org", "shares": {}}
    tree = Tree([state_of(one)])
    edited = tree_edited(tree, [Edit("create", "new", "q-1", "team", {"kind": "team"}), Edit("create", "deep", "new", "p", {})])

    assert edited.faults == {}
    assert edited.after.paths["deep"] == "acme/team/p"
    assert edited.after["deep"].values == NodeValues("project")


def test_jobs_keep_a_node_a_leaf_in_a_change_too(personas: Personas, root: Access):
    builders.job(on=personas.nodes["acme/research/nlp"])
    with pytest.raises(ValidationError) as raised:
        _draft(
            root, {"op": "create", "node": "new", "parent": personas.nodes["acme/research/nlp"].public_id, "name": "x", "set": {"kind": "project"}}
        )
    assert "jobs live on nodes without children" in raised.value.message_dict["edits.0.parent"][0]


def test_a_stranger_sees_no_change(personas: Personas, root: Access):
    _draft(root, _guarantee(personas, "acme/research/nlp", 6_000))
    assert change_list(personas.access("viewer")).count() == 1
    assert change_list(personas.access("stranger")).count() == 0
