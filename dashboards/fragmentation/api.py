"""Fragmentation over HTTP."""

from datetime import datetime
from typing import Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field, JsonValue

from dashboards.fragmentation.defragmenting import Defragmented, Move, Opened, Stuck, defragmentation_preview
from dashboards.fragmentation.measure import Against, KeptOut, Pile, Why
from dashboards.fragmentation.store import fragmentation_course, fragmentation_newest
from dashboards.gap.store import span_for
from gpufleet.core.ranges import range_of
from gpufleet.core.taken import SAID, AskedTime, Taken
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from quotas.permissions import Access
from scheduler.api.lists import answered
from scheduler.models import Defragmentation
from scheduler.selectors.defragmenting import defragmentation_for, defragmentations_listed
from scheduler.services.defragmenting import MOST_MOVES, defragmentation_start, defragmentation_stop

router = Router(tags=["Fleet"])
NAMES: list[JsonValue] = [why.value for why in Why]


class AgainstOut(Schema):
    """What free GPUs are worth to a demand, on average over its jobs."""

    jobs: int = Field(description="How many jobs of the demand accept the type; 0: no job, and nothing is useless.", examples=[12])
    useless_milli: int = Field(description="What these jobs cannot use of the free GPUs, in thousandths.", examples=[14500])
    causes: dict[str, int] = Field(description="The same by cause, in thousandths of GPUs.", examples=[{"partial": 12000, "topology": 2500}])
    short_milli: int = Field(description="Free, but fewer than a job needs even if they lay together: not fragmented.", examples=[0])


class PileOut(Schema):
    gpu_type: str = Field(description="The GPU type.", examples=["H100-SXM-80GB"])
    pool: str = Field(description="The pool; empty: none.", examples=["training"])
    free_milli: int = Field(description="Free GPUs, parts of shared ones included, in thousandths.", examples=[37000])
    waiting: AgainstOut = Field(description="Against the queue as it waits now.")
    usual: AgainstOut = Field(description="Against the commonest jobs of the last four weeks.")
    idle_nodes: dict[str, int] = Field(description="Nodes by how many idle GPUs they have.", examples=[{"1": 4, "8": 2}])


class KeptOutOut(Schema):
    gpu_type: str = Field(description="The GPU type.", examples=["H100-SXM-80GB"])
    workers: int = Field(description="How many workers each of the jobs needs.", examples=[8])
    gpus: int = Field(description="Whole GPUs a worker.", examples=[8])
    level: str = Field(description="The level in one domain of which it has to stand; empty: anywhere.", examples=["leaf"])
    jobs: int = Field(description="How many such jobs wait.", examples=[2])
    cause: str = Field(description="Why most of the free GPUs are useless to it.", examples=["topology"], json_schema_extra={"enum": NAMES})
    free_gpus: int = Field(description="Free GPUs of the type.", examples=[96])
    room_workers: int = Field(description="How many of its workers fit into the domain that has room for most.", examples=[5])


class FragmentationOut(Schema):
    """One snapshot."""

    at: datetime | None = Field(description="When the snapshot was taken; null before the first.", examples=["2026-03-02T09:41:00Z"])
    piles: list[PileOut] = Field(description="Free GPUs by type and pool.")
    largest_gang: dict[str, dict[str, int]] = Field(
        description="GPUs that one gang could start with now inside one domain, by GPU type and level.",
        examples=[{"H100-SXM-80GB": {"cluster": 37, "leaf": 12, "node": 8}}],
    )
    kept_out: list[KeptOutOut] = Field(description="Jobs that would start if the free GPUs of the type lay together; the most GPUs first.")


class FragmentationQuery(Schema):
    gpu_type: str = Field("", description="One GPU type; empty: the whole fleet.")


@router.get("/fleet/fragmentation", response=FragmentationOut, summary="Free GPUs that jobs cannot use, by cause")
def fleet_fragmentation(request: HttpRequest, asked: Query[FragmentationQuery]) -> FragmentationOut:
    """The newest snapshot, at most a minute old while the console runs."""
    access_of(request).must_somewhere(Can.SEE)
    newest = fragmentation_newest()
    if newest is None:
        return FragmentationOut(at=None, piles=[], largest_gang={}, kept_out=[])
    at, found = newest

    def wanted(gpu_type: str) -> bool:
        return not asked.gpu_type or gpu_type == asked.gpu_type

    return FragmentationOut(
        at=at,
        piles=[_pile_out(pile) for pile in found.piles if wanted(pile.gpu_type)],
        largest_gang={kind: dict(levels) for kind, levels in found.largest.items() if wanted(kind)},
        kept_out=[_kept_out(one) for one in found.kept_out if wanted(one.gpu_type)],
    )


def _pile_out(pile: Pile) -> PileOut:
    return PileOut(
        gpu_type=pile.gpu_type,
        pool=pile.pool,
        free_milli=pile.free_milli,
        waiting=_against_out(pile.waiting),
        usual=_against_out(pile.usual),
        idle_nodes={str(idle): nodes for idle, nodes in pile.idle.items()},
    )


def _against_out(against: Against) -> AgainstOut:
    causes = {why.value: milli for why, milli in against.useless.items() if milli}
    return AgainstOut(jobs=against.jobs, useless_milli=against.milli, causes=causes, short_milli=against.short)


def _kept_out(one: KeptOut) -> KeptOutOut:
    shape = one.shape
    return KeptOutOut(
        gpu_type=one.gpu_type,
        workers=shape.workers,
        gpus=shape.gpus,
        level=shape.level,
        jobs=one.jobs,
        cause=one.why,
        free_gpus=one.free,
        room_workers=one.room,
    )


class FragmentationHistoryQuery(Schema):
    range: Literal["1h", "6h", "24h", "7d", "30d", "90d"] = Field("24h", description="How far back.")
    gpu_type: str = Field("", description="One GPU type; empty: the whole fleet.")
    pool: str | None = Field(None, description="One pool; empty: GPUs of no pool; left out: all.")


class FragmentationHistoryOut(Schema):
    """Columns of the same length, one value a step, in thousandths of GPUs on average; null where no snapshot was taken."""

    step_seconds: int = Field(description="Seconds from one value to the next.", examples=[300])
    at: list[datetime] = Field(description="When each step begins.", examples=[["2026-03-02T09:00:00Z", "2026-03-02T09:05:00Z"]])
    free_milli: list[int | None] = Field(description="Free GPUs.", examples=[[37000, None]])
    useless_milli: dict[str, list[int | None]] = Field(description="What is useless to the queue, by cause.", examples=[{"partial": [12000, None]}])
    usual_useless_milli: list[int | None] = Field(description="What is useless to the usual demand.", examples=[[9000, None]])


@router.get("/fleet/fragmentation/history", response=FragmentationHistoryOut, summary="Fragmentation over time")
def fleet_fragmentation_history(request: HttpRequest, asked: Query[FragmentationHistoryQuery]) -> FragmentationHistoryOut:
    """What the chart of the page shows."""
    access_of(request).must_somewhere(Can.SEE)
    chosen = range_of({"range": asked.range})
    start = chosen.begin(now())
    span = span_for(chosen.step)
    course = fragmentation_course(start, start + chosen.length, step=chosen.step, span=span, gpu_type=asked.gpu_type, pool=asked.pool)
    return FragmentationHistoryOut(
        step_seconds=int(chosen.step.total_seconds()),
        at=[step.at for step in course],
        free_milli=[None if step.free is None else round(step.free) for step in course],
        useless_milli={why.value: [None if step.waiting is None else round(step.waiting[why]) for step in course] for why in Why},
        usual_useless_milli=[None if step.usual is None else round(step.usual) for step in course],
    )


LISTED = 50


class MoveOut(Schema):
    """A job that would move. Its name and id are empty where the caller may not see it."""

    job: str = Field(description="Id of the job.", examples=["j-17"])
    job_name: str = Field(description="Name of the job.", examples=["finetune"])
    for_job: str = Field(description="Id of the job that finds room by it.", examples=["j-31"])
    gpus_milli: int = Field(description="GPUs that it holds, in thousandths.", examples=[2000])
    lost_s: int = Field(description="Seconds of work since its last checkpoint, which are done again.", examples=[240])
    leaves: list[str] = Field(description="Names of the nodes that it leaves, or stays on.", examples=[["h100-n4"]])
    comes_to: list[str] = Field(description="Names of the nodes that it comes to.", examples=[["h100-n9"]])


class OpenedOut(Schema):
    job: str = Field(description="Id of the job; empty where the caller may not see it.", examples=["j-31"])
    job_name: str = Field(description="Name of the job.", examples=["pretrain"])
    gpus_milli: int = Field(description="GPUs that it would start with, in thousandths.", examples=[64000])


class StuckOut(Schema):
    job: str = Field(description="Id of the job; empty where the caller may not see it.", examples=["j-40"])
    job_name: str = Field(description="Name of the job.", examples=["sweep"])
    why: str = Field(description="Why no jobs are moved for it.", examples=["no set of moves makes room"])


class LargestOut(Schema):
    gpu_type: str = Field(description="The GPU type.", examples=["H100-SXM-80GB"])
    level: str = Field(description="The level in one domain of which the gang stands.", examples=["leaf"])
    now_gpus: int = Field(description="GPUs that one gang could start with now.", examples=[32])
    then_gpus: int = Field(description="The same after the moves, before any job starts there.", examples=[64])


class DefragmentedOut(Schema):
    """What would happen now."""

    moves: list[MoveOut] = Field(description="Jobs that would save, leave and go on elsewhere.")
    starts: list[OpenedOut] = Field(description="Waiting jobs that would start because of it.")
    stuck: list[StuckOut] = Field(description="Waiting jobs for which no jobs are moved; at most five.")
    largest: list[LargestOut] = Field(description="Largest gangs that become larger or smaller.")


class DefragmentationQuery(Schema):
    moves: int = Field(16, ge=1, le=MOST_MOVES, description="How many jobs may move.")


class DefragmentationIn(Taken):
    moves: int = Field(ge=1, le=MOST_MOVES, description="How many jobs may move within an hour of the start.", examples=[16])
    starts_at: AskedTime | None = Field(None, description="The start, within the next seven days; now, where nothing is said.")
    reason: str = Field(max_length=300, json_schema_extra=SAID)


class DefragmentationOut(Schema):
    id: str = Field(description="Id of the defragmentation.", examples=["df-8"])
    state: str = Field(description="scheduled, open or ended.", examples=["open"])
    moves: int = Field(description="How many jobs may move.", examples=[16])
    moves_done: int = Field(description="How many have moved.", examples=[5])
    starts_at: datetime = Field(description="From when on.", examples=["2026-03-02T09:41:00Z"])
    ends_at: datetime = Field(description="Until when at most.", examples=["2026-03-02T10:41:00Z"])
    ended_at: datetime | None = Field(description="When it ended; null while it is open.", examples=[None])
    ended_because: str = Field(description="Why it ended; empty while it is open.", examples=[""])
    by_rule: bool = Field(description="Whether the rule on lasting fragmentation started it.", examples=[False])
    by: str = Field(description="The user that started it.", examples=["Oona Operator"])
    reason: str = Field(description="Why.", examples=["A 64-GPU gang waits."])


class DefragmentationsOut(Schema):
    items: list[DefragmentationOut]


@router.get("/fleet/defragmentation", response=DefragmentedOut, url_name="defragmentation", summary="What a defragmentation would do now")
def fleet_defragmentation(request: HttpRequest, asked: Query[DefragmentationQuery]) -> DefragmentedOut:
    """Nothing is changed. Jobs move only where that costs less than it wins."""
    access = access_of(request)
    access.must_everywhere(Can.OPERATE)
    return _defragmented(defragmentation_preview(access=access, moves=asked.moves, now=now()))


@router.get("/defragmentations", response=DefragmentationsOut, url_name="defragmentations", summary="Defragmentations, the newest first")
def defragmentation_list(request: HttpRequest) -> HttpResponse:
    """The newest fifty."""
    return answered({"items": [_defragmentation(row) for row in defragmentations_listed(access_of(request))[:LISTED]]})


@router.post("/defragmentations", response={201: DefragmentationOut}, url_name="defragmentations", summary="Let more jobs be moved for an hour")
def defragmentation_create(request: HttpRequest, body: DefragmentationIn) -> HttpResponse:
    """One at a time: while one is scheduled, or one is open that would overlap, another is refused with 409."""
    access = access_of(request)
    made = defragmentation_start(access=access, moves=body.moves, reason=body.reason, starts_at=body.starts_at, now=now())
    answer = answered(_defragmentation(made))
    answer.status_code = 201
    return answer


@router.post("/defragmentations/{public_id}/stop", response=DefragmentationOut, url_name="defragmentation_stop", summary="Stop a defragmentation")
def defragmentation_end(request: HttpRequest, public_id: str) -> HttpResponse:
    """Moves that are under way are finished."""
    access: Access = access_of(request)
    return answered(_defragmentation(defragmentation_stop(access=access, found=defragmentation_for(access, public_id), now=now())))


def _defragmentation(row: Defragmentation) -> dict[str, object]:
    return {
        "id": row.public_id,
        "state": "scheduled" if row.state == Defragmentation.State.OPEN and row.starts_at > now() else row.state,
        "moves": row.moves_most,
        "moves_done": row.moves_done,
        "starts_at": row.starts_at,
        "ends_at": row.ends_at,
        "ended_at": row.ended_at,
        "ended_because": row.ended_because,
        "by_rule": row.by_rule,
        "by": row.asked_by_name,
        "reason": row.reason,
    }


def _named(one: Move | Opened | Stuck) -> dict[str, str]:
    """Whose it is, as far as the caller may know it."""
    return {"job": one.public_id, "job_name": one.job.name} if one.job else {"job": "", "job_name": ""}


def _defragmented(found: Defragmented) -> DefragmentedOut:
    return DefragmentedOut(
        moves=[
            MoveOut(
                **_named(one),
                for_job=one.for_job,
                gpus_milli=one.milli,
                lost_s=one.lost_seconds,
                leaves=list(one.leaves),
                comes_to=list(one.comes_to),
            )
            for one in found.moves
        ],
        starts=[OpenedOut(**_named(one), gpus_milli=one.milli) for one in found.opened],
        stuck=[StuckOut(**_named(one), why=one.why) for one in found.stuck],
        largest=[
            LargestOut(gpu_type=kind, level=level, now_gpus=before, then_gpus=after)
            for kind, levels in found.largest.items()
            for level, (before, after) in levels.items()
            if before != after
        ],
    )
