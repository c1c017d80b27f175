"""Whether, when and where a job would start, in words. What is said of other teams names them only where the reader may see them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpufleet.core.templatetags.shell import gpu_word, gpus, gpus_told, percent_of, plural
from quotas.permissions import Access, Can
from scheduler.engine.state.fleet import bits_of
from scheduler.presenters.deferring import DeferralView, deferral_facts, deferral_view
from scheduler.presenters.jobs import CELL, GAP, Cell, sentence, span
from scheduler.selectors.discretion import ANOTHER_JOB, Discretion
from scheduler.services.forecasts.fitting import Fit

NODES_SHOWN = 12
CLAIMANTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A node with the GPUs that it would hold there."""

    node: str
    cells: tuple[Cell, ...]
    devices: str

    @property
    def width(self) -> int:
        return max(0, len(self.cells) * (CELL + GAP) - GAP)


@dataclass(frozen=True, slots=True)
class Better:
    """One change that starts it sooner. `path` and `value` are what the form takes over."""

    path: str
    value: str
    text: str
    at: datetime
    now: bool


@dataclass(frozen=True, slots=True)
class FitView:
    fit: Fit
    tone: str
    icon: str
    heading: str
    reasons: tuple[tuple[str, str], ...]  # sentence and code
    places: tuple[Place, ...]
    more_places: int
    quota: str
    takers: str  # who could put it out
    others: tuple[str, ...]  # what it does to others
    notes: tuple[str, ...]
    speeds: tuple[str, ...]  # which type is tried first and why
    better: tuple[Better, ...]
    deferral: DeferralView | None


LOOKS = {
    "now": ("good", "play", "Starts now"),
    "soon": ("good", "clock", "Starts once others have left"),
    "later": ("move", "clock", "Starts later"),
    "held": ("rest", "pause", "Waits even if GPUs are free"),
    "never": ("bad", "cross", "Never starts like this"),
    "unknown": ("warn", "question", "Nobody can say when it starts"),
}


def fit_view(fit: Fit, access: Access, sizes: Mapping[str, int]) -> FitView:
    """`sizes` says how many GPUs a node has, by its name with its cluster."""
    said = [*fit.reasons, *fit.claimants, *(one.job for one in fit.others), *fit.after]
    told = Discretion(access, said)
    tone, icon, heading = LOOKS[fit.verdict]
    if fit.verdict == "later" and fit.deferral is not None and fit.deferral.to is not None:
        heading = "Deferred"
    if fit.verdict in ("now", "soon", "later") and fit.wanted_milli > fit.gpus_milli:
        heading = f"{heading} on {gpus(fit.gpus_milli)} of {gpus_told(fit.wanted_milli)}"
    places = _places(fit, sizes)
    return FitView(
        fit=fit,
        tone=tone,
        icon=icon,
        heading=heading,
        reasons=tuple((sentence(told.text(str(one.get("detail", "")))), str(one.get("code", ""))) for one in fit.reasons),
        places=tuple(places[:NODES_SHOWN]),
        more_places=max(0, len(places) - NODES_SHOWN),
        quota=_quota(fit, access),
        takers=_takers(fit, told),
        others=_others(fit, told),
        notes=_notes(fit),
        speeds=_speeds(fit),
        better=tuple(better_of(change.path, change.to, change.at, change.now) for change in fit.changes),
        deferral=None if fit.deferral is None else deferral_view(fit.deferral, sees=fit.sees_energy),
    )


def node_names(fit: Fit) -> list[str]:
    """Of the nodes that its picture shows."""
    return list(dict.fromkeys([*(stand.node for stand in fit.stands), *(name for name, _ in fit.nodes)]))[:NODES_SHOWN]


def _places(fit: Fit, sizes: Mapping[str, int]) -> list[Place]:
    masks: dict[str, int] = {}
    for stand in fit.stands:
        masks[stand.node] = masks.get(stand.node, 0) | stand.gpus
    if masks:
        return [_place(node, list(bits_of(mask)), sizes) for node, mask in masks.items()]
    found = []
    for node, count in fit.nodes:
        cells = tuple(Cell(number * (CELL + GAP), "held" if number < count else "rest", f"GPU {number}") for number in range(sizes.get(node, count)))
        found.append(Place(_plain(node), cells, plural(count, "GPU")))
    return found


def _place(node: str, held: list[int], sizes: Mapping[str, int]) -> Place:
    size = max(sizes.get(node, 0), max(held, default=-1) + 1)
    cells = tuple(Cell(number * (CELL + GAP), "held" if number in held else "rest", f"GPU {number}") for number in range(size))
    return Place(_plain(node), cells, f"GPU {span(held)}" if held else "no GPU")


def _plain(node: str) -> str:
    """A node's own name: the engine puts its cluster in front."""
    return node.rpartition("/")[2]


def _quota(fit: Fit, access: Access) -> str:
    if not fit.levels:
        return ""
    own = fit.levels[0]
    after = own.used + fit.gpus_milli
    if own.guaranteed is None:
        return f"{fit.quota} may use as much of {fit.gpu_type} as it likes."
    tight = next((level for level in fit.levels if level.guaranteed is not None and level.used + fit.gpus_milli > level.guaranteed), None)
    now = "" if fit.verdict in ("now", "soon") else "at present, "
    first = " So much for its first job; the others stand in line behind it." if fit.count > 1 else ""
    if fit.guaranteed and tight is None:
        kind = f"{fit.gpu_type} {gpu_word(own.guaranteed)}"
        return sentence(f"{now}guaranteed: {gpus(after)} of {gpus(own.guaranteed)} guaranteed {kind} of {fit.quota} would be in use.{first}")
    sees = tight is not None and access.can(Can.SEE, tight.quota)  # what is above his own part of the tree is told to nobody in numbers
    if fit.guaranteed and not sees:
        return sentence(f"{now}guaranteed: within all guarantees above {fit.quota} as well, before lower work there, which then borrows.{first}")
    if fit.guaranteed and tight is not None:
        kind = f"{gpus(tight.guaranteed or 0)} {fit.gpu_type} {gpu_word(tight.guaranteed or 0)}"
        told = f"within the {kind} that {tight.quota} is guaranteed, before lower work there, which then borrows"
        return sentence(f"{now}guaranteed: {told} ({gpus(tight.used + fit.gpus_milli)} would be in use).{first}")
    share = f"{fit.quota} would use {gpus(after)} {fit.gpu_type} {gpu_word(after)}, of which {gpus(own.guaranteed)} guaranteed"
    where = "" if tight is None or tight is own else ", and more than is guaranteed is in use above it"
    if tight is not None and tight is not own and sees:
        where = f", and {tight.quota} is at its guarantee of {gpus(tight.guaranteed or 0)}"
    return sentence(f"{now}borrowed: {share}{where}.")


def _takers(fit: Fit, told: Discretion) -> str:
    if fit.preemptible == "no":
        return "It is never preempted: it is not preemptible."
    if fit.guaranteed:
        if fit.preemptible == "when_borrowed":
            return "It is not preempted while it is within the guarantee."
        return "Only a job of its own queue with a higher class or priority could preempt it."
    named = list(dict.fromkeys(told.text(name) for name in fit.claimants))
    rest = [f"{len(named) - CLAIMANTS_SHOWN} more"] if len(named) > CLAIMANTS_SHOWN else []
    *first, last = [*named[:CLAIMANTS_SHOWN], *rest] or [""]
    shown = f"{', '.join(first)} and {last}" if first else last
    if not named:
        return "No other queue has guaranteed GPUs left to claim; a job of its own queue with a higher class or priority could preempt it."
    shown = sentence(shown).rstrip(".")
    return f"{shown} could take it back: guaranteed GPUs of theirs lie idle. So could a job of its own queue with a higher class or priority."


def _notes(fit: Fit) -> tuple[str, ...]:
    """What else narrows where it may run, and how fast it is in a part of a GPU."""
    told = [*_parts(fit), *(fit.budgets if fit.verdict != "never" else ())]
    if fit.without_images:
        *first, last = fit.without_images
        named = f"{', '.join(first)} and {last}" if first else last
        told.insert(0, f"It names an image, so it does not run on {named}: no images are run there.")
    return tuple(told)


def _parts(fit: Fit) -> Iterator[str]:
    """What sharing a GPU takes of its speed, as far as that is known."""
    for board, profile in fit.instances:
        if profile.sms and board.sms:
            share, charged = percent_of(profile.sms, board.sms), gpus(board.charge_milli(profile))
            yield f"An instance {profile.name} has {profile.sms} of {board.sms} SMs ({share} of the GPU) and is charged as {charged} GPUs."
    if fit.sharing == "mps":
        yield "By MPS it computes beside others on its GPU: they share its memory bandwidth and caches."
    if fit.sharing == "timeslice":
        yield "By time slices it has the GPU in turns: beside one other job that computes, half of the time."


# Why a type is tried before others.
CHOSEN = {
    "fastest": "it is the fastest of the types that the job accepts",
    "cheapest": "the work costs the least there, of the types that the job accepts",
    "stated": "it comes first in the job's types, or by name",
}


def _speeds(fit: Fit) -> tuple[str, ...]:
    """Which type is tried first and why, where it never runs, and where the speeds come from."""
    if not fit.on_types and not fit.zero_types:
        return ()
    told = []
    if fit.on_types:
        first, *rest = fit.on_types
        alike = [one.gpu_type for one in rest if one.speed == first.speed]
        why = CHOSEN[fit.type_choice] if rest else "it is the only type on which the job can run"
        if alike and fit.type_choice == "fastest":
            why = f"it is as fast as {' and '.join(alike)} and comes first in the job's types, or by name"
        told.append(f"{first.gpu_type} is tried first: {why}.")
    if fit.zero_types:
        told.append(f"Never on {' or '.join(fit.zero_types)}: the speed there is 0.")
    if fit.states_speeds:
        told.append(f"Speeds of the template {fit.speeds_of}, number {fit.speeds_number}." if fit.speeds_of else "Speeds as the job states them.")
    return tuple(told)


# Of one, and of several.
VERBS = {
    "evict": ("is preempted", "are preempted"),
    "shrink": ("gives some GPUs back", "give some GPUs back"),
    "move": ("is moved", "are moved"),
    "start": ("starts elsewhere", "start elsewhere"),
    "grow": ("grows", "grow"),
    "repair": ("is repaired", "are repaired"),
}


def _others(fit: Fit, told: Discretion) -> tuple[str, ...]:
    counts: dict[tuple[str, str], int] = {}
    for one in fit.others:
        if one.action in VERBS and one.job:
            who = told.text(one.job)
            counts[who, one.action] = counts.get((who, one.action), 0) + 1
    lines = [
        sentence(f"{who} {VERBS[action][0]}") if count == 1 or who != ANOTHER_JOB else f"{count} jobs of other teams {VERBS[action][1]}."
        for (who, action), count in counts.items()
    ]
    return (*lines, *(["A GPU is repartitioned for it."] if any(one.action == "repartition" for one in fit.others) else []))


def better_of(path: str, to: Any, at: datetime, now: bool) -> Better:
    return Better(path, _field_value(to), change_said(path, to), at, now)


def _field_value(value: Any) -> str:
    """As a form's field has it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def change_said(path: str, to: Any) -> str:
    key = path.rpartition(".")[2].partition("[")[0]
    if to is None:
        return {"gpu_types": "On any GPU type", "required": "Anywhere, not in one domain"}.get(key, f"Without {path}")
    if key in ("workers", "min"):
        return f"With {plural(int(to), 'worker')}{' at least' if key == 'min' else ''}"
    if key == "gpus":
        return f"With {plural(int(to), 'GPU')} each"
    if key == "preemptible":
        return "As preemptible work"
    if key == "limit_s":
        return f"Time limit {_length(int(to))}"
    return f"With {path}: {to}"


def _length(seconds: int) -> str:
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def fit_facts(fit: Fit, access: Access) -> dict[str, Any]:
    """The same for programs."""
    view = fit_view(fit, access, {})
    return {
        "verdict": fit.verdict,
        "at": fit.at,
        "earliest": fit.earliest,
        "latest": fit.latest,
        "as_of": fit.as_of,
        "reasons": [{"code": code, "detail": detail} for detail, code in view.reasons],
        "waits_for": list(fit.waits_for),
        "places": [{"node": place.node, "gpus": sum(cell.state == "held" for cell in place.cells)} for place in _places(fit, {})],
        "gpu_type": fit.gpu_type or None,
        "gpus_milli": fit.gpus_milli,
        "count": fit.count,
        "quota": fit.quota,
        "guaranteed": fit.guaranteed,
        "quota_text": view.quota,
        "preemptible": fit.preemptible,
        "takers_text": view.takers,
        "others": list(view.others),
        "notes": list(view.notes),
        "run_s": fit.run_seconds,
        "cost_micros": fit.cost_micros,
        "all_gpus_milli": fit.all_milli,
        "all_cost_micros": fit.all_cost_micros,
        "limit_cost_micros": fit.limit_cost_micros,
        "on_types": [
            {
                "gpu_type": one.gpu_type,
                "speed": one.speed,
                "run_s": one.run_seconds,
                "cut": one.cut,
                "cost_micros": one.cost_micros,
                "chosen": one.chosen,
            }
            for one in fit.on_types
        ],
        "types_text": list(view.speeds),
        "deferral": deferral_facts(fit.deferral, sees=fit.sees_energy),
        "speeds_of": fit.speeds_of or None,
        "speeds_number": fit.speeds_number or None,
        "changes": [{"path": one.path, "to": one.to, "at": one.at, "now": one.now, "text": change_said(one.path, one.to)} for one in fit.changes],
    }
