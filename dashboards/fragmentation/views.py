"""The page of fragmentation, and its chart."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboards.fragmentation.defragmenting import USUAL_MOVES, defragmentation_preview, told
from dashboards.fragmentation.measure import KeptOut, Pile, Scattered, Why
from dashboards.fragmentation.store import fragmentation_course, fragmentation_newest
from dashboards.fragmentation.told import CAUSES, shape_told, summed
from dashboards.gap.store import span_for
from dashboards.marks import fleet_marks
from gpufleet.core.charts import Chart, Series, chart_response, over_time
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.previews import Preview
from gpufleet.core.ranges import Range, range_of
from gpufleet.core.templatetags.shell import percent_of, plural
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Access, Can, access_of, requires
from scheduler.presenters.node_changes import moment_told
from scheduler.selectors.defragmenting import defragmentation_for, defragmentations_listed
from scheduler.services.defragmenting import MOST_MOVES, defragmentation_faults, defragmentation_start, defragmentation_stop

SHOWN = 12
DEFRAGMENTATIONS_SHOWN = 5


@require_safe
@requires(Can.SEE)
def fragmentation_page(request: HttpRequest) -> HttpResponse:
    moment, version = now(), feed_revision()
    newest = fragmentation_newest()
    found = newest[1] if newest else None
    types = sorted({pile.gpu_type for pile in found.piles}) if found else []
    gpu_type = asked if (asked := request.GET.get("type", "")) in types else ""
    chosen = range_of(request.GET)
    access = access_of(request)
    context: dict[str, Any] = {
        "may_operate": access.can_everywhere(Can.OPERATE),
        "now": moment,
        "defragmentations": defragmentations_listed(access)[:DEFRAGMENTATIONS_SHOWN],
    }
    context |= {"at": newest[0] if newest else None, "types": types, "gpu_type": gpu_type, "range": chosen, "version": version}
    if found:
        source = reverse("fragmentation-history")
        context |= {
            **_figures(found, gpu_type),
            "chart": fragmentation_chart(access, chosen, gpu_type, moment),
            "source": f"{source}?{urlencode({'type': gpu_type})}" if gpu_type else source,
        }
    return render(request, "dashboards/fragmentation.html", context)


class MovesForm(forms.Form):
    """How many more jobs may move, and from when on."""

    moves = forms.IntegerField(
        min_value=1,
        max_value=MOST_MOVES,
        error_messages={
            "required": "A number of moves is required.",
            "invalid": "The number of moves must be a whole number.",
            "min_value": f"The number of moves must be between 1 and {MOST_MOVES:,}.",
            "max_value": f"The number of moves must be between 1 and {MOST_MOVES:,}.",
        },
    )
    starts_at = forms.DateTimeField(required=False, error_messages={"invalid": "Enter a date and a time, or leave it empty for now."})


class DefragmentForm(MovesForm):
    """The same, and why."""

    reason = forms.CharField(max_length=300, required=False)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def defragment(request: HttpRequest) -> HttpResponse:
    """What would move and what that opens; sent, it begins, or is scheduled."""
    if request.method != "POST":
        form = MovesForm(request.GET if "moves" in request.GET else {"moves": USUAL_MOVES})
        return _defragment_page(request, form, faults=form.errors, status=200 if form.is_valid() else 422)
    form = DefragmentForm(request.POST)
    if not form.is_valid():
        return _defragment_page(request, form, faults=form.errors, status=422)
    if "preview" in request.POST:
        return _defragment_page(request, form, faults={}, status=200)
    try:
        found = defragmentation_start(access=access_of(request), now=now(), **form.cleaned_data)
    except ValidationError as fault:
        return _defragment_page(request, form, faults=fault.message_dict, status=422)
    except Conflict as fault:
        return _defragment_page(request, form, faults={"all": [str(fault)]}, status=409)
    when = f"from {moment_told(found.starts_at)} on " if form.cleaned_data["starts_at"] else ""
    stop = Undo(reverse("defragment_stop", args=[found.public_id]), {})
    done_with_undo(request, f"Up to {plural(found.moves_most, 'job')} more may move {when}for an hour.", stop)
    return redirect("fragmentation")


def _defragment_page(request: HttpRequest, form: MovesForm, *, faults: Mapping[str, Any], status: int) -> HttpResponse:
    read = getattr(form, "cleaned_data", {})
    moves, begins, moment = read.get("moves"), read.get("starts_at"), now()
    context = {
        "moves": form.data.get("moves", ""),
        "begins": form.data.get("starts_at", "")[:20],
        "begins_name": "starts_at",
        "begins_preview": reverse("defragment"),
        "reason": form.data.get("reason", ""),
        "most": MOST_MOVES,
        "own_faults": ("moves", "begins", "starts_at"),
    }
    unclear = {name: list(texts) for name, texts in faults.items() if name in ("moves", "starts_at")}
    if moves is not None and not unclear:
        unclear = {name: [text] for name, text in defragmentation_faults(moves=moves, starts_at=begins, now=moment).items()}
    if unclear or moves is None:
        preview = Preview(sentences=(), faults=[text for texts in unclear.values() for text in texts])
    else:
        preview = told(defragmentation_preview(access=access_of(request), moves=moves, now=moment), moves=moves, begins=begins)
    found = {name: list(texts) for name, texts in faults.items()} | unclear
    context |= {"preview": preview, "faults": found | {"begins": found.get("starts_at", [])}}
    return render(request, "dashboards/defragment.html", context, status=status)


@require_POST
@requires(Can.OPERATE, everywhere=True)
def defragment_stop(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    try:
        defragmentation_stop(access=access, found=defragmentation_for(access, public_id), now=now())
        messages.success(request, "No further job is moved for it.")
    except Conflict as fault:
        messages.error(request, str(fault))
    return redirect("fragmentation")


@require_safe
@requires(Can.SEE)
def fragmentation_history(request: HttpRequest) -> HttpResponseBase:
    """The chart for another range or type, or a minute later."""
    chart = fragmentation_chart(access_of(request), range_of(request.GET), request.GET.get("type", ""), now())
    answer = chart_response(request, chart, name="fragmentation")
    answer["Cache-Control"] = "no-store"
    return answer


def fragmentation_chart(access: Access, chosen: Range, gpu_type: str, moment: datetime) -> Chart:
    """What is free, and what of it the queue and the usual demand cannot use."""
    start = chosen.begin(moment)
    course = fragmentation_course(start, start + chosen.length, step=chosen.step, span=span_for(chosen.step), gpu_type=gpu_type)
    series = [
        Series("Free", [_gpus(step.free) for step in course], "held"),
        Series("Unusable by the queue", [_gpus(None if step.waiting is None else sum(step.waiting.values())) for step in course], "waste"),
        Series("Unusable by the usual demand", [_gpus(step.usual) for step in course], "series-6", dashed=True),
    ]
    marks, at = fleet_marks(access, since=start, gpu_type=gpu_type), [step.at for step in course]
    return over_time(label=f"Free GPUs and what of them is unusable, last {chosen.text}", unit="GPUs", at=at, series=series, marks=marks)


def _gpus(milli: float | None) -> float | None:
    return None if milli is None else round(milli / 1000, 2)


def _tenths(milli: int) -> int:
    """Rounded to tenths of a GPU."""
    return round(milli, -2)


def _figures(found: Scattered, gpu_type: str) -> dict[str, Any]:
    piles = [pile for pile in found.piles if not gpu_type or pile.gpu_type == gpu_type]
    kept_out = [one for one in found.kept_out if not gpu_type or one.gpu_type == gpu_type]
    free, waiting, usual = summed(piles)
    largest = {kind: levels for kind, levels in found.largest.items() if not gpu_type or kind == gpu_type}
    levels = list(next(iter(largest.values()), {}))
    counts = sorted({count for pile in piles for count in pile.idle})
    at_work = [why for why in CAUSES if waiting.useless[why]]
    return {
        "told": [CAUSES[why] for why in at_work],
        "free": _tenths(free),
        "waiting": {"jobs": waiting.jobs, "milli": _tenths(waiting.milli)},
        "usual": {"jobs": usual.jobs, "milli": _tenths(usual.milli)},
        "kept_jobs": sum(one.jobs for one in kept_out),
        "piles": [_pile(pile, at_work) for pile in piles],
        "pooled": any(pile.pool for pile in piles),
        "kept_out": [_kept_out(one) for one in kept_out[:SHOWN]],
        "more_kept_out": max(0, len(kept_out) - SHOWN),
        "levels": levels,
        "largest": [(kind, [(level, of[level]) for level in levels]) for kind, of in largest.items()],
        "counts": counts,
        "idle": [(pile.gpu_type, pile.pool, [(count, pile.idle.get(count, 0)) for count in counts]) for pile in piles if pile.idle],
    }


def _pile(pile: Pile, at_work: Sequence[Why]) -> Mapping[str, Any]:
    """`at_work`: the causes that anything is useless for; the others have no column."""
    return {
        "gpu_type": pile.gpu_type,
        "pool": pile.pool,
        "free": _tenths(pile.free_milli),
        "causes": [(CAUSES[why].label, _tenths(pile.waiting.useless[why])) for why in at_work],
        "jobs": pile.waiting.jobs,
        "useless": _tenths(pile.waiting.milli),
        "share": percent_of(pile.waiting.milli, pile.free_milli),
        "short": _tenths(pile.waiting.short),
        "usual": _tenths(pile.usual.milli),
        "usual_share": percent_of(pile.usual.milli, pile.free_milli),
    }


def _kept_out(one: KeptOut) -> Mapping[str, Any]:
    query: Sequence[tuple[str, str]] = (("state", "queued"), ("blocker", "fragmentation"), ("blocker", "topology"))
    return {
        "gpu_type": one.gpu_type,
        "shape": shape_told(one.shape),
        "jobs": one.jobs,
        "needs": 1000 * one.shape.whole,
        "free": 1000 * one.free,
        "room": one.room,
        "workers": one.shape.workers,
        "why": CAUSES[one.why],
        "link": f"{reverse('jobs')}?{urlencode(query)}",
    }
