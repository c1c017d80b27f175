"""Nodes: the list, one node, and what an operator does with it."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
import orjson
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboards.courses import node_chart, node_heat
from dashboards.measures import HARDWARE_MEASURES, measure_of
from dashboards.node_list import NODES, nodes_now
from dashboards.readings import gpus_read, hardware_now
from dashboards.weak import DRIVER_UTILIZATION, nodes_signal
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.previews import Preview
from gpufleet.core.ranges import range_of
from gpufleet.core.templatetags.shell import plural
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo, named, undone_said
from gpufleet.web import Can, access_of, requires
from scheduler.forms import BoundariesForm, DrainForm, NodeHealthForm, SpareForm
from scheduler.hardware.lifecycle import may_follow, steps_from
from scheduler.hardware.pcie import carried
from scheduler.models import IN_SERVICE, DrainWay, Gpu, Health, Node, PlannedHealth
from scheduler.presenters.hardware import boundaries_told, drawing_of, history_lines, plan_text
from scheduler.presenters.node_changes import Way, drain_preview, drain_progress, health_preview, moment_told, moved_at_once, seconds_lost
from scheduler.selectors.holders import Holder, holding_jobs, node_holders
from scheduler.selectors.nodes import (
    health_plans,
    hourly_micros,
    jobs_left,
    jobs_left_count,
    node_for,
    node_gpus,
    node_guests,
    node_history,
    nodes_listed,
    plan_of,
    planned_count,
)
from scheduler.services.forecasts.grounds import placeless_after
from scheduler.services.hardware.draining import MOST_NODES, Back, drain_checked, nodes_drain, nodes_drain_undo
from scheduler.services.hardware.hardware import (
    REASON_LENGTH,
    Undone,
    health_mark,
    node_boundaries_state,
    node_health_change,
    node_spare_set,
)
from scheduler.services.hardware.planned_health import drain_plan_checked, health_plan, health_plans_call_off
from scheduler.services.jobs.prices import repeated_work
from scheduler.views.begins import begins_told
from scheduler.views.view_tabs import opened_with, views_shown

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Stands = Annotated[str, msgspec.Meta(max_length=REASON_LENGTH)]


@require_safe
@requires(Can.SEE)
def node_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    operates = access.can_everywhere(Can.OPERATE)
    if (opened := opened_with(access, request, NODES)) is not None:
        return opened
    context = {
        "heading": "Nodes",
        "version": feed_revision(),
        "can_add": operates,
        "planned": planned_count(),
        "views": partial(views_shown, access, request, NODES),
    }
    presented = partial(nodes_now, access)
    return NODES.respond(request, nodes_listed(access), "scheduler/hardware_list.html", context, presented=presented, chooses=operates)


@require_safe
@requires(Can.SEE)
def node_page(request: HttpRequest, public_id: str) -> HttpResponse:
    return _page(request, node_for(access_of(request), public_id))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def node_health(request: HttpRequest, public_id: str) -> HttpResponse:
    """Another health: what it does to running jobs is shown first, on a page of its own (`?to=draining`)."""
    access = access_of(request)
    node = node_for(access, public_id)
    if request.method != "POST":
        to = request.GET.get("to", Health.DRAINING)
        if to == Health.DRAINING and may_drain(node):
            return _drain_page(request, [node])
        return _health_page(request, node, to) if may_follow(node.health, to) else redirect("node", public_id=public_id)
    if request.POST.get("to") == Health.DRAINING:
        return _drain(request, [node], seen={node.public_id: request.POST["seen"]} if request.POST.get("seen") else {})
    try:
        sent = form_values(NodeHealthForm(request.POST))
        undone = sent["undone"]
        if "preview" in request.POST and may_follow(node.health, sent["to"]):
            return _health_page(request, node, sent["to"])
        if sent["begins"]:
            return _plan(request, [node], to=sent["to"], seen=sent["seen"] or None, sent=sent)
        changed = node_health_change(access=access, node=node, **steps_of(sent), now=now())
    except ValidationError as fault:
        faults, to = messages_by_field(fault), request.POST.get("to", "")
        return (
            _health_page(request, node, to, status=422, faults=faults)
            if may_follow(node.health, to)
            else _page(request, node, status=422, faults=faults)
        )
    except Conflict as fault:
        return _page(request, node_for(access, public_id), status=409, faults={"to": [str(fault)]})
    done_with_undo(request, health_said(changed.name, changed, undone), None if undone else _node_undo(node, changed))
    return redirect("node", public_id=public_id)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.OPERATE, everywhere=True)
def nodes_drain_page(request: HttpRequest) -> HttpResponse:
    """Drain many nodes at once: those that were chosen in the list (`row`) or that the address names (`node`)."""
    access = access_of(request)
    data = request.POST if request.method == "POST" else request.GET
    if "undo" in request.POST:
        return _drain_undo(request)
    names = list(dict.fromkeys([*data.getlist("row"), *data.getlist("node")]))
    if not names:
        messages.info(request, "Choose nodes to drain first.")
        return redirect("nodes")
    if len(names) > MOST_NODES:
        messages.error(request, f"Choose at most {MOST_NODES} nodes to drain at once. {len(names):,} were chosen.")
        return redirect("nodes")
    nodes = [node_for(access, name) for name in names]
    if request.method != "POST" or "row" in request.POST:
        return _drain_page(request, nodes)
    return _drain(request, nodes, seen={})


def _drain(request: HttpRequest, nodes: list[Node], *, seen: dict[str, str]) -> HttpResponse:
    access = access_of(request)
    try:
        sent = form_values(DrainForm(request.POST))
        if "preview" in request.POST:
            _drain_checked(sent)
            return _drain_page(request, nodes)
        if sent["begins"]:
            return _plan(request, nodes, to=Health.DRAINING, sent=sent, way=sent["jobs"], at=sent["at"])
        undone = sent["undone"] if len(nodes) == 1 else None
        how = {"way": sent["jobs"], "at": sent["at"], "reason": sent["reason"]}
        done = nodes_drain(access=access, nodes=nodes, **how, seen=seen, undone=undone, now=now())
    except ValidationError as fault:
        found = messages_by_field(fault)
        unclear = [text for field in ("jobs", "begins", "at") for text in found.get(field, ())]
        return _drain_page(request, nodes, status=422, faults=found, **({"preview": Preview(sentences=(), faults=unclear)} if unclear else {}))
    except Conflict as fault:
        return _drain_page(request, [node_for(access, node.public_id) for node in nodes], status=409, faults={"all": [str(fault)]})
    said = f" {plural(done.asked, 'job')} {'is' if done.asked == 1 else 'are'} asked to save and leave." if done.asked else ""
    said += f" Owners of {plural(done.told, 'job')} are notified." if done.told else ""
    if len(nodes) == 1:
        first, undo = health_said(nodes[0].name, done.nodes[0], undone), None if undone else _node_undo(nodes[0], done.nodes[0])
    else:
        after = {node.pk: node for node in done.nodes}
        first, undo = f"{len(nodes)} nodes are draining now.", _nodes_undo([(node, after[node.pk]) for node in nodes])
    done_with_undo(request, f"{first}{said}", undo)
    return redirect("node", public_id=nodes[0].public_id) if len(nodes) == 1 else redirect(f"{reverse('nodes')}?health=draining")


def _drain_checked(sent: dict[str, Any]) -> None:
    if sent["begins"]:
        drain_plan_checked(begins_at=sent["begins"], way=sent["jobs"], at=sent["at"], now=now())
    else:
        drain_checked(way=sent["jobs"], at=sent["at"], now=now())


def _plan(request: HttpRequest, nodes: list[Node], *, to: str, sent: dict[str, Any], **how: Any) -> HttpResponse:
    replaced = PlannedHealth.objects.filter(node__in=nodes).exists()
    how |= {"to": to, "begins_at": sent["begins"], "reason": sent["reason"], "undone": sent["undone"].mark if sent["undone"] else ""}
    plans = health_plan(access=access_of(request), nodes=nodes, **how, now=now())
    what = "drain" if to == Health.DRAINING else "change"
    fields = {"plan": " ".join(plan.public_id for plan in plans), "reason": f"Undo of a planned {what}.", "undo": "yes"}
    which = nodes[0].name if len(nodes) == 1 else f"{len(nodes)} nodes"
    does = ("drains" if len(nodes) == 1 else "drain") if to == Health.DRAINING else f"will be {Health(to).label.lower()}"
    said = f"{which} {does} from {moment_told(plans[0].begins_at)} on."
    done_with_undo(request, said, None if replaced or how["undone"] else Undo(reverse("health_plans_call_off"), fields))
    return redirect("node", public_id=nodes[0].public_id) if len(nodes) == 1 else redirect("nodes")


@require_safe
@requires(Can.SEE)
def health_plan_list(request: HttpRequest) -> HttpResponse:
    """What health nodes are to have later, those first that begin next."""
    access = access_of(request)
    plans, more = health_plans(access)
    context = {"plans": [(plan, plan_text(plan)) for plan in plans], "more": more, "may_operate": access.can_everywhere(Can.OPERATE)}
    return render(request, "scheduler/planned_health.html", context | {"version": feed_revision()})


@require_POST
@requires(Can.OPERATE, everywhere=True)
def health_plans_call_off_write(request: HttpRequest) -> HttpResponse:
    """Planned changes of health that do not begin: ids, apart by blanks."""
    plans = request.POST.get("plan", "").split()
    planned = list(PlannedHealth.objects.filter(public_id__in=plans[: MOST_NODES + 1]))
    try:
        nodes = health_plans_call_off(access=access_of(request), plans=plans, reason=request.POST.get("reason", ""), now=now())
    except (Conflict, ValidationError) as fault:
        messages.error(request, str(fault) if isinstance(fault, Conflict) else " ".join(fault.messages))
        return redirect("nodes")
    gone = len(set(plans)) - len(nodes)
    what = "drain" if {plan.to for plan in planned} == {Health.DRAINING} else "change"
    said = (
        f"The planned {what} of {nodes[0].name} is called off." if len(nodes) == 1 else f"The planned {what}s of {len(nodes)} nodes are called off."
    )
    if gone:
        said += f" {plural(gone, 'other')} {'has' if gone == 1 else 'have'} begun or changed since."
    done_with_undo(request, said, None if "undo" in request.POST else _plan_again(nodes, planned))
    if request.POST.get("list"):
        return redirect("health_plans")
    return redirect("node", public_id=nodes[0].public_id) if len(nodes) == 1 else redirect("nodes")


def _plan_again(nodes: Sequence[Node], planned: Sequence[PlannedHealth]) -> Undo | None:
    """The same plan once more; none where it was not of one node, or has begun by then."""
    plan = next((plan for plan in planned if len(nodes) == 1 and plan.node_id == nodes[0].pk), None)
    if plan is None:
        return None
    begins, at = (f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" if moment is not None else "" for moment in (plan.begins_at, plan.at))
    fields = {"to": plan.to, "jobs": plan.way, "begins": begins, "at": at, "reason": plan.reason, "mark": str(nodes[0].other_event)}
    return Undo(reverse("node_health", args=[nodes[0].public_id]), fields)


def steps_of(sent: dict[str, Any]) -> dict[str, Any]:
    """What a `HealthForm` says of the step."""
    return {"to": sent["to"], "reason": sent["reason"], "seen": sent["seen"] or None, "undone": sent["undone"]}


def health_said(name: str, changed: Node | Gpu, undone: Undone | None) -> str:
    told = Health(changed.health).label.lower()
    return f"Undone: {name} is {told} again." if undone else f"{name} is {told} now."


def health_undo(address: str, before: Node | Gpu, after: Node | Gpu, **fields: str) -> Undo | None:
    """Back to the health before, where that may follow, and as long as nobody has changed it since."""
    told = Health(after.health).label.lower()
    found = {"to": before.health, "seen": after.health, "reason": f"Undo of {told}."} | fields
    found |= {"mark": health_mark(after), "stands": before.health_reason}
    return Undo(address, found) if may_follow(after.health, before.health) or found["to"] == after.health else None


def _node_undo(before: Node, after: Node) -> Undo | None:
    """Back to the health before; or to how it drained before, as long as its time has not come."""
    address = reverse("node_health", args=[before.public_id])
    if before.health != Health.DRAINING:
        return health_undo(address, before, after)
    if before.drain_way not in ("", DrainWay.FINISH) and (before.drain_at is None or before.drain_at <= now()):
        return None
    at = f"{before.drain_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" if before.drain_at is not None else ""
    way = before.drain_way or DrainWay.FINISH.value
    told = {"reason": "Undo of a change of the drain."} if after.health == Health.DRAINING else {}
    return health_undo(address, before, after, jobs=way, at=at, **told)


def _nodes_undo(changed: Sequence[tuple[Node, Node]]) -> Undo | None:
    """Each node with what it was and the mark that the drain left; none where no node can go back."""
    rows = []
    for before, after in changed:
        way, at = (before.drain_way, before.drain_at) if before.health == Health.DRAINING else ("", None)
        rows.append([before.public_id, health_mark(after), before.health, way, at, before.health_reason])
    may = any(_node_undo(before, after) is not None for before, after in changed)
    return Undo(reverse("nodes_drain"), {"undo": orjson.dumps(rows).decode()}) if may else None


def _drain_undo(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    try:
        rows = msgspec.json.decode(request.POST["undo"], type=list[tuple[str, str, str, str, Moment | None, Stands]])[: MOST_NODES + 1]
        back = [Back(node_for(access, name), mark, health, way, at, reason) for name, mark, health, way, at, reason in rows]
        went = nodes_drain_undo(access=access, back=back, now=now())
    except msgspec.DecodeError:
        messages.error(request, "This cannot be undone.")
    except (Conflict, ValidationError) as fault:
        messages.error(request, str(fault) if isinstance(fault, Conflict) else " ".join(fault.messages))
    else:
        said, late = undone_said(len(went.done), len(went.changed), [node.name for node in went.changed], "node"), [node.name for node in went.late]
        if late:
            whose = "its" if len(late) == 1 else "their"
            said += f" {plural(len(late), 'node')} cannot go back, as {whose} earlier deadline has passed{named(late, len(late))}."
        messages.success(request, said)
    return redirect("nodes")


def _drain_page(request: HttpRequest, nodes: list[Node], *, status: int = 200, **extra: Any) -> HttpResponse:
    moment, form = now(), DrainForm(request.POST)
    form.is_valid()
    way = Way(form.cleaned_data.get("jobs", DrainWay.FINISH), form.cleaned_data.get("at"), form.cleaned_data.get("begins"))
    plans = [plan for node in nodes if (plan := plan_of(node)) is not None]
    if request.method != "POST" and len(nodes) == 1:
        way = _way_of(nodes[0], planned="planned" in request.GET)
    access, gpus = access_of(request), [gpu for node in nodes for gpu in node_gpus(node)]
    guests = node_guests(access, *nodes, now=moment)
    repeated = repeated_work(access, seconds_lost(way, guests, moment), {guest.job.pk: guest.job for guest in guests}, now=moment)
    hourly = hourly_micros(access, gpus, now=moment)
    moved = moved_at_once(way, guests, moment)
    placeless = placeless_after([f"{node.cluster.name}/{node.name}" for node in nodes], moved, moment) if moved else None
    one = nodes[0] if len(nodes) == 1 else None
    context = {
        "nodes": nodes,
        "node": one,
        "verb": "Change drain" if one is not None and one.health == Health.DRAINING else "Drain",
        "to": Health.DRAINING.value,
        "preview": drain_preview(nodes, way, guests, gpus=len(gpus), hourly=hourly, repeated=repeated, plans=plans, placeless=placeless, now=moment),
        "choices": DrainWay.choices,
        "own_faults": ("jobs", "at", "begins"),
        "way": way.jobs,
        "at": request.POST.get("at", _typed(way.at, moment)),
        "begins": request.POST.get("begins", _typed(way.begins, moment)),
        "may_plan": one is None or one.health in IN_SERVICE,
        "reason": request.POST.get("reason", ""),
        "action": reverse("node_health", args=[one.public_id]) if one is not None else reverse("nodes_drain"),
        **extra,
    }
    return render(request, "scheduler/node_change.html", context, status=status)


def _way_of(node: Node, *, planned: bool) -> Way:
    """How it drains, or is planned to."""
    plan = plan_of(node) if planned else None
    if plan is not None and plan.to == Health.DRAINING:
        return Way(plan.way, plan.at, plan.begins_at)
    return Way(node.drain_way or DrainWay.FINISH, node.drain_at) if node.health == Health.DRAINING else Way()


def _typed(at: datetime | None, moment: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M}" if at is not None and at > moment else ""


def _health_page(request: HttpRequest, node: Node, to: str, *, status: int = 200, **extra: Any) -> HttpResponse:
    access, moment, gpus, plan = access_of(request), now(), node_gpus(node), plan_of(node)
    found: dict[str, Any] = {"gpus": len(gpus), "hourly": hourly_micros(access, gpus, now=moment), "plans": [plan] if plan is not None else []}
    begins, told = begins_told(request, extra.get("faults", {}))
    if request.method != "POST" and plan is not None and plan.to == to and "planned" in request.GET:
        begins = plan.begins_at
    preview = health_preview(node.name, node.health, to, node_guests(access, node, now=moment), begins=begins, **found)
    address = reverse("node_health", args=[node.public_id])
    return health_page(
        *(request, node, to, node.name),
        above=[("Nodes", reverse("nodes")), (node.name, reverse("node", args=[node.public_id]))],
        preview=Preview(sentences=(), faults=told) if told else preview,
        action=address,
        begins=request.POST.get("begins", _typed(begins, moment))[:20],
        begins_preview=address,
        later=f"change to {Health(to).label.lower()}",
        own_faults=("begins",),
        status=status,
        **extra,
    )


def health_page(request: HttpRequest, device: Node | Gpu, to: str, name: str, *, status: int, **given: Any) -> HttpResponse:
    """Another health of a node or a GPU: why, and what it does to jobs there. `begins_preview` is given where it may begin later."""
    verb = next(step.verb for step in steps_from(device.health) if step.to == to)
    context = {
        "device": device,
        "name": name,
        "verb": verb,
        "to": to,
        "is_grave": to == Health.DOWN,
        "reason": request.POST.get("reason", ""),
        **given,
    }
    return render(request, "scheduler/health_change.html", context, status=status)


@require_POST
@requires(Can.OPERATE, everywhere=True)
def node_spare(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    node = node_for(access, public_id)
    try:
        sent = form_values(SpareForm(request.POST))
        changed = node_spare_set(access=access, node=node, spare=sent["spare"], reason=sent["reason"], now=now(), undone=sent["mark"])
    except ValidationError as fault:
        return _page(request, node, status=422, spare_faults=messages_by_field(fault), spare_reason=request.POST.get("reason", ""))
    except Conflict as fault:
        return _page(request, node, status=409, spare_faults={"spare": [str(fault)]})
    said = f"{changed.name} is kept as a spare." if changed.spare else f"{changed.name} is no longer a spare."
    back = {"spare": "no" if changed.spare else "yes", "reason": "Undo.", "mark": str(changed.other_event)}
    done_with_undo(request, said, None if sent["mark"] else Undo(reverse("node_spare", args=[public_id]), back))
    return redirect("node", public_id=public_id)


@require_POST
@requires(Can.OPERATE, everywhere=True)
def node_boundaries(request: HttpRequest, public_id: str) -> HttpResponse:
    """What an operator states of the boundaries between the jobs of a node."""
    access = access_of(request)
    node = node_for(access, public_id)
    before = [one.name for one in boundaries_told(node) if one.is_stated]
    form = BoundariesForm(request.POST)
    try:
        sent = form_values(form)
        changed = node_boundaries_state(access=access, node=node, boundaries=form.boundaries, reason=sent["reason"], now=now(), undone=sent["mark"])
    except ValidationError as fault:
        return _page(request, node, status=422, boundary_faults=messages_by_field(fault), boundary_reason=request.POST.get("reason", ""))
    except Conflict as fault:
        return _page(request, node, status=409, boundary_faults={"boundaries": [str(fault)]})
    back = {**dict.fromkeys(before, "on"), "reason": "Undo.", "mark": str(changed.other_event)}
    undo = None if sent["mark"] else Undo(reverse("node_boundaries", args=[public_id]), back)
    done_with_undo(request, f"Boundaries of {changed.name} saved.", undo)
    return redirect("node", public_id=public_id)


def may_drain(node: Node) -> bool:
    """Also while it drains: how it does can be changed."""
    return node.removed_at is None and (node.health == Health.DRAINING or may_follow(node.health, Health.DRAINING))


def form_values(form: Any) -> dict[str, Any]:
    """What the form says; a form that says it wrongly is refused like any other bad value."""
    if not form.is_valid():
        raise ValidationError(form.errors.as_data())
    read: dict[str, Any] = form.cleaned_data
    return read


def messages_by_field(fault: ValidationError) -> dict[str, list[str]]:
    return fault.message_dict if hasattr(fault, "error_dict") else {"all": fault.messages}


def _page(request: HttpRequest, node: Node, *, status: int = 200, **extra: Any) -> HttpResponse:
    access, version, chosen = access_of(request), feed_revision(), range_of(request.GET)
    gpus, measure = node_gpus(node), measure_of(request.GET)
    held: dict[int | None, list[Holder]] = {}
    holders_here = node_holders(access, node.pk)
    for holder in holders_here:
        held.setdefault(holder.gpu_id, []).append(holder)
    hardware = hardware_now(now=now())
    devices, read = [], gpus_read([gpu.pk for gpu in gpus], now=now(), hardware=hardware)
    for gpu in gpus:
        holders = held.get(gpu.pk, [])
        drawing = drawing_of(gpu, gpu.instances, holders)  # type: ignore[attr-defined]
        devices.append({"gpu": gpu, "holders": holders, "jobs": holding_jobs(holders), "drawing": drawing, "now": read[gpu.pk]})
    taken = sum(min(1000, sum(holder.gpu_milli for holder in held.get(gpu.pk, []))) for gpu in gpus)
    left, moment = jobs_left(access, node), now()
    network = hardware.network(node.pk)
    drains = node.health == Health.DRAINING and node.removed_at is None
    plan = plan_of(node) if node.removed_at is None else None
    told_boundaries = boundaries_told(node)
    context = {
        "version": version,
        "node": node,
        "chart": node_chart(node, chosen=chosen, now=moment, measure=measure) if gpus else None,
        "heat": node_heat(node, gpus, chosen=chosen, now=moment) if len(gpus) > 1 else None,
        "range": chosen,
        "measures": HARDWARE_MEASURES,
        "measure": measure,
        "is_weak": nodes_signal([node.public_id]) == DRIVER_UTILIZATION,
        "devices": devices,
        "is_read": any(one.is_read for one in read.values()),
        "taken_milli": taken,
        "capacity_milli": len(gpus) * 1000,
        "jobs": holding_jobs(holders_here),
        "left": left,
        "nics": [(nic, network.slow.get(nic.name)) for nic in node.nics.order_by("name")],
        "pcie_now": node.pcie_gbps and carried(node.pcie_gbps, node.pcie_lost),
        "retransmits": network.retransmits,
        "steps": [asdict(step) for step in steps_from(node.health)],
        "may_drain": may_drain(node),
        "plan": plan,
        "plan_text": plan_text(plan) if plan is not None else "",
        "may_plan": plan is not None and (node.health in IN_SERVICE if plan.to == Health.DRAINING else may_follow(node.health, plan.to)),
        "drain": drain_progress(node, node_guests(access, node, now=moment), left=jobs_left_count(node), now=moment) if drains else None,
        "may_operate": access.can_everywhere(Can.OPERATE) and node.removed_at is None,
        "history": history_lines(node_history(node)),
        "boundaries": told_boundaries,
        "has_boundary": any(one.by for one in told_boundaries),
        "may_state": any(one.may_state for one in told_boundaries),
        **extra,
    }
    return render(request, "scheduler/node.html", context, status=status)
