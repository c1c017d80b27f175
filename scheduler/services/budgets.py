"""What a budget that is used up does to jobs: nothing new starts, running ones wind down where it says so, and those who look after it are told."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Q, QuerySet
from django.dispatch import Signal

from gpufleet.core.audit import SYSTEM, Actor
from gpufleet.core.live.news import News
from gpufleet.core.models import User
from quotas.models import AtStop, Budget, Role, RoleBinding
from quotas.selectors.budgets import above_of
from quotas.services.budgets import Turned, budgets_turn
from scheduler.models import HOLDING, Job, JobState
from scheduler.services.forecasts.budgeting import amount_said
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Stop, attempts_stop
from scheduler.services.notify.notices import Kind, Word, notices_say

# Who is told: those who lead the team, and those who set its budgets.
TOLD = (Role.TEAM_LEAD, Role.QUOTA_ADMIN)
MOST_TOLD = 50
# Sent in the transaction in which a budget that warns, stops or goes on is acted on, with what was said of it: `turned`, `title`, `text`,
# `actor`, `now`.
budget_acted = Signal()


def budgets_step(*, now: datetime) -> int:
    """Count all budgets, and act on what has changed. Returns how many have."""
    turned = budgets_turn(now=now)
    for one in turned:
        budget_act(turned=one, now=now)
    _still_running(now)
    return len(turned)


def _still_running(now: datetime) -> None:
    """A process may have ended between the count that stopped a budget and what follows: its jobs wind down now."""
    stopped = Budget.objects.filter(stopped_at__isnull=False, at_stop=AtStop.WIND_DOWN, removed_at__isnull=True)
    for budget in stopped.select_related("quota").order_by("pk"):
        if _running(budget).exists():
            news = News()
            with transaction.atomic():
                _wind_down(budget, now, news)
                news.publish()
                lease_want()


def budget_seen(sender: object, *, turned: Turned, actor: Actor, now: datetime, **_: object) -> None:
    """What somebody's change of a budget brings about."""
    budget_act(turned=turned, actor=actor, now=now)


def budget_act(*, turned: Turned, actor: Actor = SYSTEM, now: datetime) -> None:
    """`actor`, whose change of the budget brought it about, is not notified. Of two at once one is undone: it has been acted on."""
    budget = turned.standing.budget
    news = News()
    with transaction.atomic():
        if turned.what == "stopped" and budget.at_stop == AtStop.WIND_DOWN:
            _wind_down(budget, now, news)
        title, text = _words(turned)
        words = [Word(user.pk, title, text, link=f"/budgets/{budget.public_id}/") for user in _people(budget) if user != actor.user]
        notices_say(kind=Kind.BUDGET, words=words, now=now, news=news)
        budget_acted.send(Budget, turned=turned, title=title, text=text, actor=actor, now=now)
        news.publish()
        lease_want()
        # Last, behind the locks of jobs: what adds up the ledger again takes them in this order.
        if not Budget.objects.filter(pk=budget.pk, untold=turned.what).update(untold=""):
            transaction.set_rollback(True)


def _wind_down(budget: Budget, now: datetime, news: News) -> None:
    cause = f"The budget {budget.public_id} ({budget.name}) of {budget.quota.path} is used up."
    stops = [Stop(key, JobState.PREEMPTED, "preempted", cause) for key in _running(budget).order_by("pk").values_list("pk", flat=True)]
    attempts_stop(stops=stops, now=now, news=news, want=False)


def _running(budget: Budget) -> QuerySet[Job]:
    """What it may stop and what does not save its work already."""
    below = Q(quota=budget.quota) | Q(quota__path__startswith=f"{budget.quota.path}/")
    return Job.objects.filter(below, state__in=set(HOLDING) - {JobState.CHECKPOINTING}).exclude(preemptible="no")


def _people(budget: Budget) -> Sequence[User]:
    bound = RoleBinding.objects.filter(role__in=TOLD, node__path__in=above_of(budget.quota.path), user__isnull=False)
    return list(User.objects.filter(pk__in=bound.values("user"), is_active=True).order_by("pk")[:MOST_TOLD])


def _words(turned: Turned) -> tuple[str, str]:
    standing = turned.standing
    budget = standing.budget
    used = f"{standing.percent}% of {amount_said(budget.amount, budget.unit)} used"
    where = f"{budget.name} ({budget.quota.path})"
    if turned.what == "stopped":
        what = "Running jobs wind down, and nothing new starts." if budget.at_stop == AtStop.WIND_DOWN else "Running jobs go on. Nothing new starts."
        return f"Budget used up: {where}", f"{used}. {what}"
    if turned.what == "resumed":
        return f"Budget open again: {where}", f"{used}. New jobs start again."
    return f"Budget near its limit: {where}", f"{used}. Forecast for the end of the period: {standing.forecast_percent}%."
