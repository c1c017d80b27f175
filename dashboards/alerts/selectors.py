"""Alerts, rules, silences and activity as people and programs ask for them.

Figures of cost are for those who may see the fleet's costs; an alert of a team's costs also for those who may see the costs of that team.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Concat
from django.http import Http404

from dashboards.alerts.figures import COSTS, FIGURES, figure_told
from dashboards.alerts.models import ActivityEntry, Alert, AlertRule, AlertState, Silence
from dashboards.alerts.round import EACH
from dashboards.health.models import Incident
from quotas.models import Budget, BudgetUnit, QuotaNode
from quotas.permissions import Access, Can
from scheduler.models import Delivery, Webhook


@dataclass(frozen=True, slots=True)
class AlertRow:
    """An alert as lists show it. `what`: what happened, of an incident that is open."""

    alert: Alert
    what: str = ""

    @property
    def state(self) -> str:
        if self.alert.state == AlertState.FIRING and self.alert.acknowledged_at is not None:
            return "acknowledged"
        return "silenced" if self.alert.state == AlertState.FIRING and self.alert.silenced else self.alert.state

    @property
    def value_told(self) -> str:
        return figure_told(self.alert.rule.figure, self.alert.value)

    @property
    def limit_told(self) -> str:
        return figure_told(self.alert.rule.figure, self.alert.rule.threshold)


def _seen(access: Access, column: str = "", of_all: Sequence[str] = ()) -> Q:
    """Rules of costs are only for those who may see them everywhere; what is of a team is for those who see it, or see its costs.

    Without a `column` the rows are rules, else what has a rule in that column and a subject of its own. `of_all`: subjects that name no team.
    """
    hidden = COSTS if not access.can_everywhere(Can.SEE_COSTS) else ()
    teams = [key for key, figure in FIGURES.items() if figure.subjects == "team"]
    prefix = f"{column}__" if column else ""
    shown = ~Q(**{f"{prefix}figure__in": hidden})
    if column and hidden:
        shown |= Q(**{f"{prefix}figure__in": [key for key in hidden if key in teams]}) & access.visible(Can.SEE_COSTS, "subject")
    if not access.can_everywhere(Can.SEE):
        shown &= ~Q(**{f"{prefix}figure__in": teams}) | Q(subject__in=of_all) | access.visible(Can.SEE, "subject")
    return shown


def _rules_seen(access: Access) -> Q:
    return _seen(access, of_all=("", EACH))


def alerts_listed(access: Access) -> QuerySet[Alert]:
    """Alerts that fired, and those that fire now."""
    access.must_somewhere(Can.SEE)
    return Alert.objects.filter(_seen(access, "rule"), fired_at__isnull=False).select_related("rule")


def alert_rows(alerts: Sequence[Alert]) -> list[AlertRow]:
    """One query, if any of them is of an incident."""
    nodes = {tuple(alert.subject.rsplit("/", 1)) for alert in alerts if alert.rule.figure == "incidents" and alert.resolved_at is None}
    titles: dict[tuple[str, ...], str] = {}
    if nodes:
        rows = Incident.objects.filter(closed_at__isnull=True, node__name__in=[names[-1] for names in nodes])
        titles = {(cluster, name): title for cluster, name, title in rows.values_list("node__cluster__name", "node__name", "title")}
    return [AlertRow(alert, _what(alert, titles)) for alert in alerts]


def _what(alert: Alert, titles: Mapping[tuple[str, ...], str]) -> str:
    is_open = alert.rule.figure == "incidents" and alert.resolved_at is None
    return titles.get(tuple(alert.subject.rsplit("/", 1)), "") if is_open else ""


def alert_for(access: Access, public_id: str) -> Alert:
    found = alerts_listed(access).filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no alert {public_id}.")
    return found


def alert_rules_listed(access: Access) -> list[AlertRule]:
    access.must_somewhere(Can.SEE)
    return list(AlertRule.objects.filter(_rules_seen(access), removed_at__isnull=True).prefetch_related("hooks").order_by("name", "pk"))


def alert_rule_for(access: Access, public_id: str) -> AlertRule:
    access.must_somewhere(Can.SEE)
    found = AlertRule.objects.filter(_rules_seen(access), public_id=public_id, removed_at__isnull=True).first()
    if found is None:
        raise Http404(f"There is no alert rule {public_id}.")
    return found


def _silences_seen(access: Access) -> QuerySet[Silence]:
    """Those of rules that the reader sees. One of all rules may name a team, too."""
    access.must_somewhere(Can.SEE)
    is_team = Exists(QuotaNode.objects.filter(path=OuterRef("subject")))
    of_all = Q(rule__isnull=True) & (~is_team | access.visible(Can.SEE, "subject"))
    of_rules = Q(rule__in=AlertRule.objects.filter(_rules_seen(access))) & _seen(access, "rule", ("",))
    return Silence.objects.filter(of_all | of_rules, ended_at__isnull=True).select_related("rule")


def silences_now(access: Access, now: datetime) -> list[Silence]:
    return list(_silences_seen(access).filter(until__gt=now).order_by("until", "pk"))


def silence_for(access: Access, public_id: str) -> Silence:
    found = _silences_seen(access).filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no silence {public_id}.")
    return found


def activity_listed(access: Access) -> QuerySet[ActivityEntry]:
    """What concerns the whole fleet, and what concerns the reader's subtrees. Lines of alerts are for those who may see the alert, and lines of
    budgets of money for those who see the costs there.
    """
    access.must_somewhere(Can.SEE)
    found = ActivityEntry.objects.filter(Q(path="") | access.visible(Can.SEE, "path"))
    if access.can_everywhere(Can.SEE_COSTS):
        return found
    hidden = Alert.objects.filter(rule__figure__in=COSTS).exclude(pk__in=Alert.objects.filter(_seen(access, "rule")).values("pk"))
    money = Budget.objects.filter(unit=BudgetUnit.MONEY).exclude(access.visible(Can.SEE_COSTS, "quota__path"))
    found = found.exclude(link__in=money.values_list(Concat(Value("/budgets/"), "public_id", Value("/"))))
    return found.exclude(link__in=hidden.values_list(Concat(Value("/activity/alerts/"), "public_id", Value("/"))))


def hooks_offered() -> QuerySet[Webhook]:
    """Webhooks that a rule may name: those of nodes."""
    return Webhook.objects.filter(node__isnull=False, removed_at__isnull=True).select_related("node").order_by("name", "pk")


def deliveries_of(alert: Alert) -> list[Delivery]:
    """What webhooks were sent of an alert, the newest first."""
    mark = f"/activity/alerts/{alert.public_id}/"  # in every format
    rows = Delivery.objects.filter(kind__startswith="alert.", body__contains=mark, made_at__gte=alert.since)
    return list(rows.select_related("hook").order_by("-pk")[:50])


def alerts_firing(hidden: Collection[str] = ()) -> list[tuple[str, str, int]]:
    """(rule, severity, how many) of alerts that fire, but for those of hidden figures. One query."""
    shown = Alert.objects.filter(state=AlertState.FIRING).exclude(rule__figure__in=hidden)
    rows = shown.order_by("rule__name").values_list("rule__name", "rule__severity")
    return list(rows.annotate(Count("pk")))
