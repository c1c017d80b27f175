"""The round of the alert rules: figures read once, each rule judged, and who is to be told told in the same transaction."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.db import transaction
from django.db.models import Q

from dashboards.alerts.figures import FIGURES, WHOLE, figures_now
from dashboards.alerts.judging import Limits, State, begun, gone_on
from dashboards.alerts.models import Alert, AlertRule, AlertState, Silence
from dashboards.telling import event_tell
from gpufleet.core.ids import public_id
from gpufleet.core.live.news import News
from gpufleet.core.models import User
from gpufleet.core.progress import turn_take
from quotas.models import Role, RoleBinding
from scheduler.notify.happenings import FleetEvent
from scheduler.services.notify.notices import Kind, Word, notices_say

TURN = "alerts"
PACE = timedelta(seconds=10)  # beat asks each fifteen seconds
EACH = "*"
MOST_SUBJECTS = 500


@dataclass(slots=True)
class Round:
    fired: int = 0
    resolved: int = 0
    escalated: int = 0


def limits_of(rule: AlertRule) -> Limits:
    return Limits(rule.threshold, rule.clear_at, timedelta(minutes=rule.for_minutes), FIGURES[rule.figure].higher_is_worse)


def alerts_turn(*, now: datetime) -> Round | None:
    """One round. None: another process just did it."""
    with transaction.atomic():
        if turn_take(name=TURN, now=now, at_least=PACE) is None:
            return None
    return alerts_round(now=now)


def alerts_round(*, now: datetime) -> Round:
    rules = [rule for rule in AlertRule.objects.filter(enabled=True, removed_at__isnull=True).order_by("pk") if rule.figure in FIGURES]
    done = Round()
    figures = figures_now(now=now, wanted={rule.figure for rule in rules})
    silences = list(Silence.objects.filter(ended_at__isnull=True, until__gt=now))
    with transaction.atomic():
        news = News()
        open_ones: dict[tuple[int, str], Alert] = {
            (alert.rule_id, alert.subject): alert for alert in Alert.objects.filter(resolved_at__isnull=True).select_related("rule")
        }
        watching = {rule.pk: rule for rule in rules}
        for place, alert in list(open_ones.items()):
            if alert.rule_id not in watching:
                _end(alert, now, done, news, "The rule was switched off.", told=False)
            elif not _watches(watching[alert.rule_id], alert.subject):
                _end(alert, now, done, news, "The rule no longer watches it.", told=False)
                del open_ones[place]
        for rule in rules:
            values = figures.get(rule.figure, {})
            amounts = figures.get(FIGURES[rule.figure].amount, {})
            for subject in _subjects(rule, values, {place[1] for place in open_ones if place[0] == rule.pk}):
                gone = 0.0 if FIGURES[rule.figure].is_count and (rule.pk, subject) in open_ones else None
                _judge(
                    rule,
                    subject,
                    _counted(rule, values.get(subject, gone), amounts.get(subject)),
                    open_ones.get((rule.pk, subject)),
                    silences,
                    now,
                    done,
                    news,
                )
        news.publish()
    return done


def _watches(rule: AlertRule, subject: str) -> bool:
    """Whether a rule is about a subject still: whoever changes what it watches leaves alerts about what it watched."""
    return subject != WHOLE if rule.subject == EACH else subject == rule.subject


def _subjects(rule: AlertRule, values: Mapping[str, float], open_ones: Collection[str]) -> list[str]:
    """What a rule is judged for: of too many subjects those that have an alert, and those with the worst values."""
    if rule.subject != EACH:
        return [rule.subject]
    sign = -1 if FIGURES[rule.figure].higher_is_worse else 1
    names = {*(name for name in values if name != WHOLE), *open_ones}
    worst = sorted(names, key=lambda name: (name not in open_ones, sign * values.get(name, 0.0), name))[:MOST_SUBJECTS]
    return sorted(worst)


def _counted(rule: AlertRule, value: float | None, amount: float | None) -> float | None:
    """The value as the rule takes it: a rise of less than its floor is none."""
    return 0.0 if value is not None and amount is not None and amount < rule.floor else value


def _judge(
    rule: AlertRule, subject: str, value: float | None, alert: Alert | None, silences: Sequence[Silence], now: datetime, done: Round, news: News
) -> None:
    limits = limits_of(rule)
    stored = None if alert is None else _kept(alert)
    if alert is None:
        state = begun(limits, value, now) if value is not None else None
        if state is None:
            return
        alert = Alert(public_id=public_id("al"), rule=rule, subject=subject, since=now, value=state.value, worst=state.worst)
        before = ""
    else:
        before = alert.state
        state = gone_on(State(alert.state, alert.since, alert.value, alert.worst, alert.calm_since), limits, value, now)
    alert.state, alert.value, alert.worst, alert.calm_since = state.state, state.value, state.worst, state.calm_since
    if state.state == AlertState.RESOLVED:
        if before == AlertState.PENDING:
            alert.delete()  # it was beyond its limit for a moment only, and nobody was told
        else:
            _end(alert, now, done, news, "", told=not is_silenced(alert, silences))
        return
    if state.state == AlertState.FIRING and before != AlertState.FIRING:
        alert.fired_at, alert.silenced = now, is_silenced(alert, silences)
        alert.save()
        done.fired += 1
        if not alert.silenced:
            alert_tell(alert, FleetEvent.ALERT_FIRING, roles=rule.told, now=now, news=news)
        return
    is_hot = state.state == AlertState.FIRING and state.calm_since is None
    if alert.silenced and alert.acknowledged_at is None and is_hot and not is_silenced(alert, silences):
        # The silence is over and it is not: whoever was not told is told now, and has as long as anybody to acknowledge it.
        alert.silenced, alert.fired_at = False, now
        alert_tell(alert, FleetEvent.ALERT_FIRING, roles=rule.told, now=now, news=news)
    if _must_escalate(alert, rule, now) and not is_silenced(alert, silences):
        alert.escalated_at = now
        done.escalated += 1
        alert_tell(alert, FleetEvent.ALERT_ESCALATED, roles=[*rule.told, *rule.escalate_to], now=now, news=news)
    if _kept(alert) != stored:  # most alerts go on as they are, round after round
        alert.save()


def _kept(alert: Alert) -> tuple[object, ...]:
    """What a round may change of an alert that goes on."""
    return alert.state, alert.since, alert.value, alert.worst, alert.calm_since, alert.silenced, alert.fired_at, alert.escalated_at


def is_silenced(alert: Alert, silences: Sequence[Silence]) -> bool:
    return any(one.rule_id in (None, alert.rule_id) and one.subject in ("", alert.subject) for one in silences)


def _must_escalate(alert: Alert, rule: AlertRule, now: datetime) -> bool:
    if rule.escalate_minutes is None or alert.fired_at is None or alert.acknowledged_at is not None or alert.escalated_at is not None:
        return False
    return now - alert.fired_at >= timedelta(minutes=rule.escalate_minutes)


def _end(alert: Alert, now: datetime, done: Round, news: News, note: str, *, told: bool) -> None:
    was_firing = alert.fired_at is not None
    alert.state, alert.resolved_at, alert.note = AlertState.RESOLVED, now, note or alert.note
    alert.save()
    done.resolved += 1
    if told and was_firing and not alert.silenced:
        alert_tell(alert, FleetEvent.ALERT_RESOLVED, roles=alert.rule.told, now=now, news=news)


def alert_tell(alert: Alert, kind: FleetEvent, *, roles: Sequence[str], now: datetime, news: News, test: bool = False) -> None:
    """The line, the messages to webhooks, and the notices to people. What concerns one team goes to its webhooks too."""
    rule, figure = alert.rule, FIGURES[alert.rule.figure]
    verb = {FleetEvent.ALERT_FIRING: "fires", FleetEvent.ALERT_ESCALATED: "is not acknowledged", FleetEvent.ALERT_RESOLVED: "is over"}[kind]
    of = f" ({alert.subject})" if alert.subject else ""
    title = f"Test of the alert rule {rule.name}" if test else f"{rule.name}{of} {verb}"
    text = "Sent because somebody asked for a test. Nothing is wrong." if test else said(alert)
    path = alert.subject if figure.subjects == "team" and alert.subject else ""
    subject = {
        "alert": alert.public_id,
        "rule": rule.public_id,
        "figure": rule.figure,
        "of": alert.subject,
        "value": round(alert.value, 3),
        "threshold": rule.threshold,
        "severity": rule.severity,
    }
    if report := report_of(alert):
        subject["report"] = report
    link = "/activity/alerts/rules/" if test else f"/activity/alerts/{alert.public_id}/"
    chosen = frozenset(rule.hooks.filter(removed_at__isnull=True).values_list("pk", flat=True))
    event_tell(kind=kind, title=title, text=text, path=path, link=link, subject=subject, now=now, also=chosen)
    words = [Word(user, title, text) for user in people_of(roles, team=path)]
    notices_say(kind=Kind.ALERT, words=words, now=now, news=news)


def report_of(alert: Alert) -> str:
    """The address of the team's cost lines of the month, where the figure is one of costs."""
    if not FIGURES[alert.rule.figure].subjects or not FIGURES[alert.rule.figure].is_cost or not alert.subject:
        return ""
    said = {"month": f"{alert.since:%Y-%m}", "by": "team", "key": alert.subject}
    return f"/cost/lines/?{urlencode(said)}"


def said(alert: Alert) -> str:
    """In words: `Idle share of allocated GPUs: 48.2%, limit 45%, since 12:04 UTC.`"""
    figure = FIGURES[alert.rule.figure]
    unit = figure.unit if figure.unit == "%" else f" {figure.unit}" if figure.unit else ""
    return f"{figure.label}: {alert.value:,.1f}{unit}, limit {alert.rule.threshold:g}{unit}, since {alert.since:%Y-%m-%d %H:%M} UTC."


def people_of(roles: Iterable[str], *, team: str = "") -> list[int]:
    """People with one of these roles on the whole fleet; of team leads, those of the team or of a node above it."""
    wanted = set(roles)
    if not wanted:
        return []
    steps = team.split("/")
    above = ["/".join(steps[: depth + 1]) for depth in range(len(steps))]
    whom = Q(role__in=wanted - {Role.TEAM_LEAD}, node__parent__isnull=True)
    if Role.TEAM_LEAD in wanted:
        whom |= Q(role=Role.TEAM_LEAD, node__path__in=above)
    held = RoleBinding.objects.filter(whom, node__archived_at__isnull=True, user__is_active=True)
    found = set(held.values_list("user_id", flat=True)) - {None}
    if Role.SUPERUSER in wanted:
        found |= set(User.objects.filter(is_superuser=True, is_active=True).values_list("pk", flat=True))
    return sorted(found)
