"""The idle pages: episodes, one episode, and the policies of the tree."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboards.idle.forms import ExemptionForm, NotifyForm, PolicyForm, ReclaimForm, SnoozeForm
from dashboards.idle.lists import EPISODES, EPISODES_UNPRICED
from dashboards.idle.models import IdleEpisode, IdlePolicy
from dashboards.idle.policies import (
    exemption_create,
    exemption_end,
    exemption_for,
    exemptions_seen,
    may_edit_policy,
    policies_read,
    policy_remove,
    policy_save,
)
from dashboards.idle.selectors import episode_for, episode_gpus, episode_steps, episodes_listed, idle_rows, idle_summary
from dashboards.idle.steps import episode_notify, episode_reclaim, episode_snooze
from gpufleet.core.faults import Conflict, Missing
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from quotas.forms import ReasonForm, show_faults
from quotas.models import QuotaNode
from quotas.permissions import nodes_visible
from quotas.selectors.nodes import node_for
from quotas.views.confirm import confirm
from scheduler.selectors.jobs import job_for


@require_safe
@requires(Can.SEE)
def idle_list(request: HttpRequest) -> HttpResponseBase:
    access, moment = access_of(request), now()
    context = {"heading": "Idle GPUs", "summary": partial(idle_summary, access, now=moment), "sees_costs": access.can_somewhere(Can.SEE_COSTS)}
    table = EPISODES if context["sees_costs"] else EPISODES_UNPRICED
    return table.respond(request, episodes_listed(access), "dashboards/idle.html", context, presented=partial(idle_rows, access, now=moment))


@require_safe
@requires(Can.SEE)
def idle_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access, moment = access_of(request), now()
    episode = episode_for(access, public_id)
    path, rules = policies_read().for_path(episode.quota.path)
    context = {
        "row": idle_rows(access, [episode], now=moment)[0],
        "episode": episode,
        "steps": episode_steps(episode),
        "gpus": episode_gpus(episode),
        "policy_path": path,
        "rules": rules,
    }
    return render(request, "dashboards/idle_episode.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def idle_notify_page(request: HttpRequest, public_id: str) -> HttpResponse:
    def act(access: Access, episode: IdleEpisode, form: Form) -> None:
        episode_notify(access=access, episode=episode, text=form.cleaned_data["reason"], now=now())

    effects = ["The owner is told in the console, and by e-mail or webhook where they chose that."]
    return _act(request, public_id, NotifyForm, act, heading="Notify the owner", send="Notify", effects=effects, done="The owner is notified.")


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def idle_reclaim_page(request: HttpRequest, public_id: str) -> HttpResponse:
    def act(access: Access, episode: IdleEpisode, form: Form) -> None:
        data = form.cleaned_data
        episode_reclaim(access=access, episode=episode, reason=data["reason"], hold=data["hold"], now=now())

    effects = [
        "The job is asked to save its work and to leave all of its GPUs.",
        "It waits in the queue and resumes from its newest checkpoint.",
        "The owner is told, with your reason.",
    ]
    done = "The GPUs are being reclaimed: the job saves its work first."
    return _act(request, public_id, ReclaimForm, act, heading="Reclaim the GPUs", send="Reclaim", effects=effects, done=done)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def idle_snooze_page(request: HttpRequest, public_id: str) -> HttpResponse:
    def act(access: Access, episode: IdleEpisode, form: Form) -> None:
        data = form.cleaned_data
        episode_snooze(access=access, episode=episode, hours=data["hours"], reason=data["reason"], now=now())

    effects = ["No policy acts on this episode for so long. Its idle time still counts.", "An owner may snooze an episode twice."]
    return _act(request, public_id, SnoozeForm, act, heading="Snooze the episode", send="Snooze", effects=effects, done="The episode is snoozed.")


def _act(
    request: HttpRequest,
    public_id: str,
    kind: type[Form],
    act: Callable[[Access, IdleEpisode, Form], None],
    *,
    heading: str,
    send: str,
    effects: list[str],
    done: str,
) -> HttpResponse:
    """One act on an episode: what happens, a form, the button; after it the episode."""
    access = access_of(request)
    episode = episode_for(access, public_id)
    row = idle_rows(access, [episode], now=now())[0]
    if not (row.may_snooze if kind is SnoozeForm else row.may_act) and episode.ended_at is None:
        raise access.refusal(Can.MANAGE_JOBS, Can.OPERATE, path=episode.quota.path)
    form = kind(request.POST if request.method == "POST" else None)
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                act(access, episode, form)
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                messages.success(request, done)
                return redirect("idle_episode", public_id)
    context = {"form": form, "heading": heading, "send": send, "effects": effects, "row": row, "episode": episode}
    return render(request, "dashboards/idle_act.html", context, status=status)


@require_safe
@requires(Can.SEE)
def idle_policies(request: HttpRequest) -> HttpResponse:
    access, moment = access_of(request), now()
    policies = policies_read()
    nodes = list(nodes_visible(access).filter(depth__lte=3).order_by("path"))
    rows = [
        {"node": node, "own": node.path in policies.by_path, "rules": policies.for_path(node.path)[1], "may_edit": may_edit_policy(access, node.path)}
        for node in nodes
    ]
    context = {"rows": rows, "exemptions": exemptions_seen(access, moment), "may_exempt": any(row["may_edit"] for row in rows)}
    return render(request, "dashboards/idle_policies.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def idle_policy_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    node = _editable(access, public_id)
    row = IdlePolicy.objects.filter(node=node).first()
    rules = policies_read().for_path(node.path)[1]
    form = PolicyForm(request.POST if request.method == "POST" else None, initial=PolicyForm.initial_of(rules, row.revision if row else 0))
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            data = form.cleaned_data
            try:
                policy_save(access=access, node=node, values=form.values(), reason=data["reason"], revision=data["revision"], now=now())
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                messages.success(request, f"The idle policy of {node.path} is saved.")
                return redirect("idle_policies")
    context = {"form": form, "heading": f"Idle policy of {node.path}", "send": "Save", "back": reverse("idle_policies")}
    return render(request, "quotas/form.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def idle_policy_remove(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    node = _editable(access, public_id)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    back = reverse("idle_policies")
    if request.method == "POST" and form.is_valid():
        if policy_remove(access=access, node=node, reason=form.cleaned_data["reason"]):
            messages.success(request, f"{node.path} has no idle policy of its own now.")
        return redirect("idle_policies")
    effects = ["The policy of the nearest node above holds again."]
    return confirm(
        request, form, heading=f"Remove the idle policy of {node.path}", send="Remove", effects=effects, above=[("Policies", back)], back=back
    )


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def idle_exemption_new(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    places = _places(access)
    if not places.exists():
        raise access.refusal(Can.EDIT_QUOTA, Can.OPERATE)
    form = ExemptionForm(request.POST if request.method == "POST" else None, places=places, initial={"job": request.GET.get("job", "")[:24]})
    if request.method == "POST" and form.is_valid():
        try:
            _exempt(access, form.cleaned_data)
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, "The exemption holds.")
            return redirect("idle_policies")
    context = {"form": form, "heading": "New exemption", "send": "Exempt", "back": reverse("idle_policies")}
    return render(request, "quotas/form.html", context, status=422 if form.is_bound else 200)


def _exempt(access: Access, data: dict[str, Any]) -> None:
    if bool(data["node"]) == bool(data["job"]):
        raise ValidationError({"job": ["Choose a team or name a job: one of the two."]})
    job = None
    if data["job"]:
        try:
            job = job_for(access, data["job"].strip())
        except Http404 as fault:
            raise ValidationError({"job": [str(fault)]}) from None
    exemption_create(access=access, node=data["node"] or None, job=job, reason=data["reason"], until=data["until"], now=now())


@require_POST
@requires(Can.SEE)
def idle_exemption_end(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = exemption_for(access, public_id)
    if found is None:
        raise Missing(f"There is no exemption {public_id}.")
    exemption_end(access=access, exemption=found, now=now())
    messages.success(request, "The exemption has ended.")
    return redirect("idle_policies")


def _places(access: Access) -> Any:
    everywhere = access.can_everywhere(Can.OPERATE)
    return nodes_visible(access, Can.SEE if everywhere else Can.EDIT_QUOTA).order_by("path")


def _editable(access: Access, public_id: str) -> QuotaNode:
    node = node_for(access, public_id)
    if not may_edit_policy(access, node.path):
        raise access.refusal(Can.EDIT_QUOTA, Can.OPERATE, path=node.path)
    return node
