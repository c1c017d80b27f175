"""Who holds what a job waits for and what would unblock it, for every reason: by real plans, and as several kinds of people may know it."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from quotas.models import QuotaShare
from scheduler.engine.model.reasons import REASONS
from scheduler.models import Dependency, Gpu, Health, Job, JobState, LearnedOverrun, Node, Outlook
from scheduler.presenters.blocking import Around, Blocker, blockers, blockers_now
from scheduler.presenters.explained import change_in_words
from scheduler.presenters.jobs import sentence
from scheduler.selectors.blocking import block_holders, out_of_service, scope_of
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.jobs import job_waits_for
from scheduler.services.jobs.steering import job_hold_back
from scheduler.snapshots.fleet import domain_named
from tests import builders
from tests.builders import NOON, attempt, job, node, outlook, placement
from tests.scheduler.loop.worlds import H100, Loop, submit

pytestmark = pytest.mark.django_db
OURS, THEIRS = "acme/research/nlp", "acme/product/search"


@pytest.fixture
def shared(personas: Any) -> Any:
    """Each side has eight GPUs guaranteed, and nobody has a limit."""
    builders.cluster(levels=("spine", "leaf"))
    for path, share in (("acme", 16), ("acme/research", 8), ("acme/product", 8), (OURS, 8), (THEIRS, 8)):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=1000 * share)
    return personas


def run(loop: Loop, personas: Any, path: str, gpus: int, **fields: Any) -> Job:
    made = submit(personas.nodes[path], gpus=gpus, at=loop.now, **fields)
    loop.tick()
    loop.up(made)
    return made


def told(personas: Any, who: str, waiting: Job, at: Any = NOON) -> dict[str, Blocker]:
    """What the plan's outlook comes to for somebody, by code; of several the first, which is the nearest on the way up."""
    access = personas.access(who)
    found = Outlook.objects.filter(job=waiting).first()
    fresh = Job.objects.select_related("quota").get(pk=waiting.pk)
    said = Discretion(access, [found.reasons] if found else [])
    rows = blockers_now(access, fresh, found, said, waits_for=job_waits_for(access, fresh), turn=None, now=at)
    return {row.code: row for row in reversed(rows)}


def test_who_waits_for_gpus_is_told_who_has_them_and_when_enough_come_free(shared):
    node("n1", gpus=8)
    loop = Loop()
    ours = run(loop, shared, OURS, 2, name="soon", estimate_seconds=3600)
    run(loop, shared, THEIRS, 4, name="secret", estimate_seconds=7200)
    waiting = submit(shared.nodes[OURS], gpus=5)
    loop.tick()

    found = told(shared, "viewer", waiting)["capacity"]

    assert found.unblock == f"3 {H100} GPUs more must come free where it may run."
    assert found.at == NOON + timedelta(hours=2), "two of them after an hour, the rest with the other job"
    assert found.holders is not None
    first, second = found.holders.first
    assert (first.job_id, first.gpus_milli, first.ends_at) == (ours.public_id, 2000, NOON + timedelta(hours=1))
    assert (second.job_id, second.job_name, second.quota, second.gpus_milli) == ("", "", "", 4000)
    assert found.holders.teams == [(OURS, 2000), ("", 4000)]
    assert dict(told(shared, "operator", waiting)["capacity"].holders.teams) == {OURS: 2000, THEIRS: 4000}


def test_who_needs_a_whole_node_is_told_the_nearest(shared):
    node("n1", gpus=8)
    node("n2", gpus=8)
    loop = Loop()
    spread = [run(loop, shared, OURS, gpus, spec={"preemptible": False}, limit_seconds=3600 * gpus) for gpus in (5, 7)]
    waiting = submit(shared.nodes[OURS], gpus=4)
    loop.tick()
    assert [one.placements.get(gpu__index=one.placements.first().gpu.index).node.name for one in spread] == ["n1", "n2"]

    found = told(shared, "viewer", waiting)["fragmentation"]

    assert found.unblock == "One more node must have 4 GPUs free at once; n1 is nearest and lacks 1."
    assert [holder.job_id for holder in found.holders.first] == [spread[0].public_id], "whoever stands on another node is not in the way"
    assert found.at == NOON + timedelta(hours=5)


def test_who_needs_a_domain_is_told_who_is_in_it(shared):
    for number, leaf in enumerate(("s1/l1", "s1/l2")):
        node(f"n{number}", gpus=8, at=leaf)
    loop = Loop()
    five, _ = (run(loop, shared, OURS, gpus, spec={"preemptible": False}, limit_seconds=600 * gpus) for gpus in (5, 6))
    wide, narrow = (submit(shared.nodes[OURS], gpus=1, workers=workers, spec={"topology": {"required": "leaf"}}) for workers in (9, 4))
    loop.tick()

    assert told(shared, "viewer", wide)["empty_fleet"].unblock.startswith("It never starts like this: 8 workers at most, a wider level than leaf")
    found = told(shared, "viewer", narrow)["topology"]
    assert found.unblock == "1 GPU more must come free in north/s1/l1 or in another leaf, or it must do with a wider level."
    assert [holder.job_id for holder in found.holders.first] == [five.public_id]
    assert found.at == NOON + timedelta(seconds=3000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("north", ("north", "", "")),
        ("north/s1/l2", ("north", "s1/l2", "")),
        ("north/-/l2", ("north", "l2", "")),
        ("north/s1/only n-7", ("north", "s1", "n-7")),
    ],
)
def test_a_domain_of_the_engine_is_found_again(name, expected):
    assert domain_named(name) == expected


def test_who_is_over_his_share_is_told_what_his_team_has(shared):
    node("n1", gpus=8)
    node("n2", gpus=8)
    loop = Loop()
    mine = run(loop, shared, OURS, 8, estimate_seconds=3600)
    run(loop, shared, THEIRS, 8)
    waiting = submit(shared.nodes[OURS], gpus=4)
    loop.tick()

    found = told(shared, "viewer", waiting)["share"]

    assert [holder.job_id for holder in found.holders.first] == [mine.public_id]
    assert found.unblock == (
        f"It starts as soon as the requested GPUs are idle; {OURS} must give 4 {H100} GPUs back before it may take any from others."
    )


def test_only_work_that_may_not_be_evicted_fills_a_guarantee(shared):
    node("n1", gpus=8)
    node("n2", gpus=8)
    loop = Loop()
    fixed = run(loop, shared, OURS, 6, preemptible="no", limit_seconds=3600)
    run(loop, shared, OURS, 2, limit_seconds=60)
    waiting = submit(shared.nodes[OURS], gpus=4, preemptible="no")
    loop.tick()

    found = told(shared, "viewer", waiting)["guarantee"]

    assert found.unblock == (
        f"2 {H100} GPUs that non-preemptible work of {OURS} holds must be given back, its guarantee be raised by as much, or this job be preemptible."
    )
    assert [holder.job_id for holder in found.holders.first] == [fixed.public_id]
    assert found.at == NOON + timedelta(hours=1)


def test_hardware_that_is_out_of_service_is_named(shared):
    node("n1", gpus=4)
    for name in ("sick-1", "sick-2"):
        node(name, gpus=8, health=Health.DRAINING)
    Gpu.objects.filter(node__name="n1", index=0).update(health=Health.DOWN)
    node("other", gpus=8, type_name="L40S-48GB", health=Health.DOWN)
    waiting = submit(shared.nodes[OURS], gpus=3)
    extra = submit(shared.nodes[OURS], gpus=2)
    Loop().tick()

    assert Job.objects.get(pk=waiting.pk).state == JobState.STARTING
    assert told(shared, "viewer", extra)["capacity"].unblock == (
        f"2 {H100} GPUs more must come free where it may run; 17 GPUs are out of service on sick-1, sick-2 and n1."
    )


def test_a_node_that_has_left_the_fleet_is_not_out_of_service(shared):
    node("gone", gpus=8, health=Health.DOWN, removed_at=NOON)
    node("sick", gpus=2, health=Health.REPAIRING)
    waiting = job(on=shared.nodes[OURS])
    found = outlook(waiting, reasons=[{"code": "shortage", "detail": "x", "guaranteed": 9, "healthy": 4}])

    assert out_of_service(found)[""].nodes == ("sick",)
    assert out_of_service(outlook(job(), "x", code="share")) == {}
    assert told(shared, "viewer", waiting)["shortage"].unblock == (
        "5 GPUs must come back into service, or guarantees be lowered by as much; 2 GPUs are out of service on sick."
    )


def test_who_holds_it_back_and_why_is_said(shared):
    waiting = submit(shared.nodes[OURS], gpus=1)
    job_hold_back(access=shared.access("team_lead"), job=waiting, reason="data moves on Friday", now=NOON)
    Outlook.objects.create(job=waiting, at=NOON, reasons=[{"code": "hold", "detail": "a person holds it back"}])

    assert told(shared, "viewer", waiting)["hold"].unblock == (
        "Team Lead holds it back (“data moves on Friday”); its owner or a manager of jobs of acme/research/nlp can release it."
    )


def test_jobs_before_it_are_named_where_they_may_be(shared):
    waiting = job(on=shared.nodes[OURS])
    one, over, secret = (
        job("prepare", on=shared.nodes[OURS]),
        job("over", on=shared.nodes[OURS], state="completed"),
        job("s", on=shared.nodes[THEIRS]),
    )
    for before in (one, over, secret):
        Dependency.objects.create(job=waiting, on=before, if_completed=before is one)
    outlook(waiting, "waits for them", code="dependency")

    assert (
        told(shared, "viewer", waiting)["dependency"].unblock == f"{one.public_id} prepare (queued) must complete and 1 job of another team must end."
    )
    assert secret.public_id in told(shared, "operator", waiting)["dependency"].unblock


def test_a_reservation_names_its_holder_where_it_may(shared):
    big = job("big", on=shared.nodes[THEIRS])
    waiting = job(on=shared.nodes[OURS])
    reason = {"code": "reservation", "detail": "x", "holder": big.public_id, "at": "2026-11-20T14:00:00Z", "gpus": 16}
    outlook(waiting, reasons=[reason])

    seen, known = told(shared, "viewer", waiting)["reservation"], told(shared, "operator", waiting)["reservation"]

    assert seen.unblock == (
        "Another job, for which 16 GPUs are kept, must have started, or this job be sure to end before that start, by a shorter limit."
    )
    assert known.unblock.startswith(f"{big.public_id} big of {THEIRS}, for which")
    assert seen.at == NOON + timedelta(hours=2)


FACTS: dict[str, dict[str, Any]] = {
    "guarantee": {"quota": OURS, "used": 4, "guaranteed": 8, "needed": 6},
    "limit": {"quota": OURS, "used": 4, "limit": 8, "needed": 6},
    "share": {"quota": OURS, "used": 4, "fair": 8, "needed": 6},
    "capacity": {"type": H100, "needed": 4, "free": 1},
    "fragmentation": {"free": 4},
    "topology": {"level": "leaf", "domain": "north/s1/l1", "room": 1, "needed": 2, "each": 4},
    "reservation": {"holder": "j-9", "at": "2026-11-20T14:00:00Z"},
    "window": {"window": "class floor", "start": "2026-11-20T14:00:00Z", "kept": 4},
    "power": {"pool": "a", "cap_watts": 9000, "left_watts": 400, "needed_watts": 5600, "start": "2026-11-20T14:00:00Z"},
    "colocation": {"node": "north/n1", "beside": "j-9", "beside_class": "batch", "boundary": "cores"},
    "victims": {"quota": OURS, "above": [THEIRS]},
    "balance": {"quota": OURS, "other": THEIRS},
    "shortage": {"guaranteed": 16, "healthy": 12},
    "empty_fleet": {"level": "leaf", "holds": 2, "needed": 4},
    "deadline": {"start": "2026-11-20T14:00:00Z", "deadline": "2026-11-20T15:30:00Z"},
    "sharing": {"asked": "3g.40gb", "type": H100, "sharing": "mig"},
    "held": {"until": "2026-11-20T14:00:00Z"},
}


def test_a_gang_is_told_where_its_other_workers_stand_and_what_hosts_lack(shared):
    waiting = job(on=shared.nodes[OURS])
    pinned = {"code": "topology", "detail": "x", **FACTS["topology"], "pinned": True}
    outlook(waiting, reasons=[pinned, {"code": "fragmentation", "detail": "y", "free": 8, "lacks": ["processors"]}])
    found = told(shared, "viewer", waiting)

    assert found["topology"].unblock == "4 GPUs more must come free in north/s1/l1, where its other workers stand, or it must do with a wider level."
    assert found["fragmentation"].unblock == "Jobs on a node that suits it must give back processors, or it ask for less of it."


@pytest.mark.parametrize(("facts", "helps"), [({"group": 8}, "smaller NVLink groups"), ({"gpus_needed": 9}, "fewer or smaller workers")])
def test_what_binds_in_the_empty_fleet_decides_what_helps(shared, facts, helps):
    waiting = job(on=shared.nodes[OURS])
    outlook(waiting, reasons=[{"code": "empty_fleet", "detail": "x", "level": "cluster", **facts}])

    assert helps in told(shared, "viewer", waiting)["empty_fleet"].unblock


@pytest.mark.parametrize(
    ("facts", "helps"),
    [
        ({"start": "2026-11-20T09:00:00Z"}, "Running jobs of the pool must end, or the cap end or be raised; fewer GPUs need less power."),
        ({"start": "2026-11-20T09:00:00Z", "needed_watts": 9900}, "The cap must end or be raised; fewer GPUs need less power."),
        ({"start": "2026-11-20T14:00:00Z"}, "A time limit that ends before the cap begins, or a higher cap; fewer GPUs need less power."),
    ],
)
def test_no_limit_helps_under_a_cap_that_has_begun(shared, facts, helps):
    waiting = job(on=shared.nodes[OURS])
    outlook(waiting, reasons=[{"code": "power", "detail": "x", **FACTS["power"], **facts}])

    assert told(shared, "viewer", waiting)["power"].unblock == helps


@pytest.mark.parametrize(
    ("facts", "helps"),
    [
        ({"beside": "j-9", "beside_class": "batch", "boundary": "mig"}, "Another node must have room, another job end, or an operator verify that"),
        ({"beside": "j-9", "beside_class": "batch", "predicted_ms": 9}, "or another job run elsewhere; its own service level may be set higher."),
        (
            {"beside": "j-9", "beside_class": "inference", "predicted_ms": 9},
            "or this job run elsewhere; another job's service level may be set higher.",
        ),
        ({}, "Another node must have room, or those on north/n1 end."),
    ],
)
def test_a_neighbour_that_it_may_not_have_is_named_only_to_those_who_may_see_it(shared, facts, helps):
    waiting = job(on=shared.nodes[OURS])
    outlook(waiting, reasons=[{"code": "colocation", "detail": "j-9 stands there", "node": "north/n1", **facts}])

    assert helps in told(shared, "viewer", waiting)["colocation"].unblock


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_has_a_sentence_and_one_of_an_earlier_version_breaks_nothing(shared, code):
    waiting = job(on=shared.nodes[OURS])
    found = Outlook(job=waiting, at=NOON, reasons=[{"code": code, "detail": "said"} | FACTS.get(code, {}), {"code": code, "detail": "said before"}])
    access = shared.access("viewer")

    now_told, before = blockers(found, Discretion(access, [found.reasons]), block_holders(access, found, NOON), Around(waiting))

    assert now_told.unblock.endswith(".") and len(now_told.unblock) > 20, code
    assert THEIRS not in now_told.unblock
    assert before.text == "Said before."
    assert before.holders is None


def test_all_reasons_together_ask_one_question(shared):
    one = node("n1", gpus=8, at="s1/l1")
    for path, count in ((OURS, 3), (THEIRS, 4)):
        made = job(on=shared.nodes[path], state=JobState.RUNNING)
        attempt(made)
        for device in list(one.gpus.order_by("index"))[count:]:
            placement(made, device, gpu_milli=500)
    reasons = [{"code": code, "detail": "x"} | FACTS.get(code, {}) for code in REASONS]
    found = Outlook(job=job(on=shared.nodes[OURS]), at=NOON, reasons=reasons)
    access = shared.access("viewer")

    with CaptureQueriesContext(connection) as asked:
        holders = block_holders(access, found, NOON)

    assert len(asked) == 1
    known = {reason["code"] for reason, held in zip(reasons, holders, strict=True) if held}
    assert known == {"limit", "share", "capacity", "topology", "victims", "balance"}
    for reason, held in zip(reasons, holders, strict=True):
        alone = block_holders(access, Outlook(job=found.job, at=NOON, reasons=[reason]), NOON)[0]
        assert alone == held, f"{reason['code']}: the condition and what is filtered behind it agree"


def test_a_gang_on_many_nodes_is_one_holder(shared):
    made = job("wide", on=shared.nodes[OURS], state=JobState.RUNNING, estimate_seconds=3600)
    attempt(made, running_at=NOON)
    for name in ("n1", "n2"):
        for device in node(name, gpus=4, at="s1/l1").gpus.all():
            placement(made, device)
    reasons = [{"code": "topology", "detail": "x", "level": "spine", "domain": "north/s1", "room": 0, "needed": 1, "each": 4}]

    held = block_holders(shared.access("viewer"), Outlook(job=job(), at=NOON, reasons=reasons), NOON)[0]

    assert [(holder.job_id, holder.gpus_milli) for holder in held.first] == [(made.public_id, 8000)]
    assert held.enough_at == NOON + timedelta(hours=1)


@pytest.mark.parametrize(("limit", "hours"), [(None, 1.5), (7200, 1)])
def test_an_end_by_an_estimate_is_that_which_plans_count_with(shared, limit, hours):
    made = job("long", on=shared.nodes[OURS], state=JobState.RUNNING, estimate_seconds=3600, limit_seconds=limit)
    attempt(made, running_at=NOON)
    for device in node("n1", gpus=4, at="s1/l1").gpus.all():
        placement(made, device)
    LearnedOverrun.objects.create(learnt_at=NOON, factor_millionths=1_500_000, jobs=90)
    reasons = [{"code": "topology", "detail": "x", "level": "spine", "domain": "north/s1", "room": 0, "needed": 1, "each": 4}]

    held = block_holders(shared.access("viewer"), Outlook(job=job(), at=NOON, reasons=reasons), NOON)[0]

    assert held.enough_at == NOON + timedelta(hours=hours)


def test_instances_of_the_asked_profile_are_what_is_waited_for(shared):
    split = builders.mig_gpu(node("n1", gpus=1), layout=(("3g.40gb", 0, 4), ("1g.10gb", 4, 1)))
    holding = {}
    for profile in ("3g.40gb", "1g.10gb"):
        made = holding[profile] = job(profile, on=shared.nodes[OURS], state=JobState.RUNNING)
        placement(made, split, mig=split.mig_instances.get(profile=profile), gpu_milli=500)
    reason = {"code": "sharing", "detail": "x"} | FACTS["sharing"]

    held = block_holders(shared.access("viewer"), Outlook(job=job(), at=NOON, reasons=[reason]), NOON)[0]

    assert [holder.job_id for holder in held.first] == [holding["3g.40gb"].public_id]
    assert scope_of(reason | {"asked": "an instance with 40 GB"}).profile == ""


def test_the_page_and_the_api_tell_it(shared):
    one = node("n1", gpus=8)
    for number, path in enumerate([OURS, *[THEIRS] * 6]):
        made = job("soon" if path == OURS else "secret", on=shared.nodes[path], state=JobState.RUNNING, estimate_seconds=3600)
        attempt(made, running_at=NOON)
        placement(made, one.gpus.get(index=number))
    waiting = job(on=shared.nodes[OURS])
    outlook(waiting, reasons=[{"code": "capacity", "detail": "needs 4 GPUs"} | FACTS["capacity"]])
    client = shared.client("viewer")

    html = client.get(reverse("job", args=[waiting.public_id])).content.decode()
    told_ = client.get(f"/api/v1/jobs/{waiting.public_id}/why").json()["reasons"][0]

    assert "What would help:" in html
    assert f"3 {H100} GPUs more must come free where it may run." in html
    assert f"2 more jobs: 7 GPUs in all, 1 of {OURS}, 6 of teams that you may not see." in html
    assert "secret" not in html
    assert told_["unblock"]["text"] == f"3 {H100} GPUs more must come free where it may run."
    assert (told_["holders"]["gpus"], told_["holders"]["missing_gpus"]) == (7, 3)
    assert told_["holders"]["teams"] == [{"quota": OURS, "gpus": 1}, {"quota": "", "gpus": 6}]
    assert Node.objects.count() == 1


@pytest.mark.parametrize(
    ("facts", "helps", "at"),
    [
        ({"most": 2, "until": "2026-11-20T14:00:00Z"}, "It is split within the hour", NOON + timedelta(hours=2)),
        ({"off": True}, "An operator must enable repartitioning", None),
    ],
)
def test_when_a_gpu_is_split_anew_again_is_told_as_far_as_it_ever_is(shared, facts, helps, at):
    waiting = job(on=shared.nodes[OURS])
    outlook(waiting, reasons=[{"code": "repartition", "detail": "x", **facts}])
    found = told(shared, "viewer", waiting)["repartition"]

    assert found.unblock.startswith(helps)
    assert found.at == at


def test_what_a_hidden_job_is_called_goes_with_its_name(personas):
    """`beside service another job` was read."""
    hidden = builders.job(on=personas.nodes["acme/product/search"], name="hidden").public_id
    texts = [
        f"beside service {hidden} on north/n1, the service's latency was 9 ms",
        f"job {hidden} stands on n1",
        f"waits for job {hidden}, {hidden}",
    ]

    told = Discretion(personas.access("submitter"), texts)

    assert [told.text(text) for text in texts] == [
        "beside another service on north/n1, the service's latency was 9 ms",
        "another job stands on n1",
        "waits for 2 other jobs",
    ]
    assert Discretion(personas.access("superuser"), texts).text(texts[0]) == texts[0]


def test_a_role_that_was_not_named_is_not_told_by_name():
    assert sentence("no node, however empty, can hold a worker of role worker: it asks for 9 GPUs") == (
        "No node, however empty, can hold a worker: it asks for 9 GPUs."
    )
    assert change_in_words("roles.worker.min", 3) == "with 3 workers"
    assert change_in_words("roles.actor.min", 1) == "with 1 worker of role actor"
