"""The round of the alert rules: figures read once, each rule judged, and who is to be told told in the same transaction."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from urllib.parse import urlencode

from django.db import transaction
from django.db.models import Exists, OuterRef, Value
from django.db.models.functions import Concat

from dashboards.alerts.figures import COSTS, FIGURES, WHOLE, figure_told, figures_now
from dashboards.alerts.judging import Limits, State, begun, gone_on
from dashboards.alerts.models import Alert, AlertRule, AlertState, Silence
from dashboards.health.models import Incident
from dashboards.telling import Event, People, events_tell
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.core.live.news import News
from gpufleet.core.progress import turn_take
from scheduler.notify.happenings import FleetEvent
from scheduler.services.notify.notices import Kind, Word, notices_say

TURN = "alerts"
PACE = timedelta(seconds=10)  # beat asks each fifteen seconds
EACH = "*"
INCIDENTS = "incidents"  # the figure whose subjects are nodes with a cause
MOST_SUBJECTS = 500
NOTE_LENGTH = 300
CHANGED = ("state", "since", "value", "worst", "calm_since", "silenced", "fired_at", "escalated_at", "resolved_at", "note")
_changeable = attrgetter(*CHANGED)
NEW = ("public_id", "rule_id", "subject", "state", "value", "worst", "since", "calm_since", "silenced", "fired_at", "escalated_at")


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
    """The number of queries is the same however many alerts fire, change or end."""
    wanted = AlertRule.objects.filter(enabled=True, removed_at__isnull=True).order_by("pk")
    rules = [rule for rule in wanted if rule.figure in FIGURES]
    figures = figures_now(now=now, wanted={rule.figure for rule in rules})
    silences = list(Silence.objects.filter(ended_at__isnull=True, until__gt=now))
    with transaction.atomic():
        # Locked, so that what somebody acknowledges meanwhile is neither written over nor escalated.
        held = Alert.objects.select_for_update(of=("self",)).filter(resolved_at__isnull=True).select_related("rule").order_by("pk")
        open_ones: dict[tuple[int, str], Alert] = {(alert.rule_id, alert.subject): alert for alert in held}
        watching = {rule.pk: rule for rule in rules}
        steps = Steps(now, silences)
        for place, alert in list(open_ones.items()):
            if alert.rule_id not in watching:
                steps.end(alert, "The rule was switched off.", told=False)
            elif not _watches(watching[alert.rule_id], alert.subject):
                steps.end(alert, "The rule no longer watches it.", told=False)
                del open_ones[place]
        for rule in rules:
            figure, values = FIGURES[rule.figure], figures.get(rule.figure, {})
            amounts = figures.get(figure.amount, {})
            for subject in _subjects(rule, values, {place[1] for place in open_ones if place[0] == rule.pk}):
                there = open_ones.get((rule.pk, subject))
                if there is not None and figure.gone and subject not in values:
                    steps.end(there, figure.gone)
                    continue
                gone = 0.0 if figure.is_count and there is not None else None
                steps.judge(rule, subject, _counted(rule, values.get(subject, gone), amounts.get(subject)), there)
        steps.write()
    return steps.done


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


class Steps:
    """What one round does to alerts, gathered on the way and written at its end."""

    def __init__(self, now: datetime, silences: Sequence[Silence]) -> None:
        self.now, self.silences, self.done = now, silences, Round()
        self._new: list[Alert] = []
        self._changed: list[Alert] = []
        self._gone: list[int] = []  # keys of those of which nobody was told
        self._told: list[Telling] = []

    def judge(self, rule: AlertRule, subject: str, value: float | None, alert: Alert | None) -> None:
        limits = limits_of(rule)
        stored = None if alert is None else _changeable(alert)
        if alert is None:
            state = begun(limits, value, self.now) if value is not None else None
            if state is None:
                return
            alert = Alert(rule=rule, subject=subject, since=self.now, value=state.value, worst=state.worst)
            before = ""
            self._new.append(alert)
        else:
            before = alert.state
            state = gone_on(State(alert.state, alert.since, alert.value, alert.worst, alert.calm_since), limits, value, self.now)
        alert.state, alert.value, alert.worst, alert.calm_since = state.state, state.value, state.worst, state.calm_since
        if state.state == AlertState.RESOLVED:
            self.end(alert, "", was=before)
            return
        if state.state == AlertState.FIRING and before != AlertState.FIRING:
            alert.fired_at, alert.silenced = self.now, is_silenced(alert, self.silences)
            self.done.fired += 1
            if not alert.silenced:
                self._tell(alert, FleetEvent.ALERT_FIRING, rule.told)
        else:
            self._go_on(alert, rule, state)
        if stored is not None and _changeable(alert) != stored:  # most alerts go on as they are, round after round
            self._changed.append(alert)

    def _go_on(self, alert: Alert, rule: AlertRule, state: State) -> None:
        is_hot = state.state == AlertState.FIRING and state.calm_since is None
        if alert.silenced and alert.acknowledged_at is None and is_hot and not is_silenced(alert, self.silences):
            # The silence is over and it is not: whoever was not told is told now, and has as long as anybody to acknowledge it.
            alert.silenced, alert.fired_at = False, self.now
            self._tell(alert, FleetEvent.ALERT_FIRING, rule.told)
        if _must_escalate(alert, rule, self.now) and not alert.silenced and not is_silenced(alert, self.silences):
            alert.escalated_at = self.now
            self.done.escalated += 1
            self._tell(alert, FleetEvent.ALERT_ESCALATED, [*rule.told, *rule.escalate_to])

    def end(self, alert: Alert, note: str, *, was: str = "", told: bool = True) -> None:
        """`note` says why, where it is not that the figure is back within its limit."""
        if (was or alert.state) == AlertState.PENDING and told:
            self._gone.append(alert.pk)  # it was beyond its limit for a moment only, and nobody was told
            return
        alert.state, alert.resolved_at, alert.note = AlertState.RESOLVED, self.now, f"{alert.note} {note}".strip()[:NOTE_LENGTH]
        self._changed.append(alert)
        self.done.resolved += 1
        if told and alert.fired_at is not None and not alert.silenced and not is_silenced(alert, self.silences):
            self._tell(alert, FleetEvent.ALERT_RESOLVED, alert.rule.told, note)

    def _tell(self, alert: Alert, kind: FleetEvent, roles: Sequence[str], note: str = "") -> None:
        self._told.append(Telling(alert, kind, tuple(roles), note))

    def write(self) -> None:
        objects_update(self._changed, CHANGED)
        if self._gone:
            Alert.objects.filter(pk__among=self._gone).delete()
        for alert, name in zip(self._new, public_ids("al", len(self._new)) if self._new else (), strict=True):
            alert.public_id = name
        rows_insert(Alert, NEW, [[getattr(alert, name) for name in NEW] for alert in self._new])
        news = News()
        alerts_tell(self._told, now=self.now, news=news)
        news.publish()


def is_silenced(alert: Alert, silences: Sequence[Silence]) -> bool:
    return any(one.rule_id in (None, alert.rule_id) and one.subject in ("", alert.subject) for one in silences)


def _must_escalate(alert: Alert, rule: AlertRule, now: datetime) -> bool:
    if rule.escalate_minutes is None or alert.fired_at is None or alert.acknowledged_at is not None or alert.escalated_at is not None:
        return False
    return now - alert.fired_at >= timedelta(minutes=rule.escalate_minutes)


@dataclass(frozen=True, slots=True)
class Telling:
    """That people and webhooks are told of an alert, and why it ended where that needs a word."""

    alert: Alert
    kind: FleetEvent
    roles: tuple[str, ...]
    note: str = ""
    is_test: bool = False


def alert_tell(alert: Alert, kind: FleetEvent, *, roles: Sequence[str], now: datetime, news: News, test: bool = False) -> None:
    alerts_tell([Telling(alert, kind, tuple(roles), is_test=test)], now=now, news=news)


def alerts_tell(tellings: Sequence[Telling], *, now: datetime, news: News) -> None:
    """The lines, the messages to webhooks, and the notices to people. What concerns one team goes to its webhooks too."""
    if not tellings:
        return
    chosen: dict[int, set[int]] = defaultdict(set)
    named = AlertRule.hooks.through.objects.filter(alertrule__among={one.alert.rule_id for one in tellings}, webhook__removed_at__isnull=True)
    for rule, hook in named.values_list("alertrule_id", "webhook_id"):
        chosen[rule].add(hook)
    incidents = _incidents_of({one.alert.subject for one in tellings if one.alert.rule.figure == INCIDENTS and not one.is_test})
    events = [_event(one, frozenset(chosen[one.alert.rule_id]), incidents.get(one.alert.subject)) for one in tellings]
    events_tell(events, now=now)
    people = People({role for one in tellings for role in one.roles})
    words = [
        Word(user, event.title, event.text, link=event.link)
        for telling, event in zip(tellings, events, strict=True)
        for user in people.with_roles(telling.roles, team=event.path)
    ]
    notices_say(kind=Kind.ALERT, words=words, now=now, news=news)


def _incidents_of(nodes: Set[str]) -> dict[str, tuple[str, str]]:
    """Of each of these nodes (`cluster/name`) its newest incident: id and cause. One query at most."""
    if not nodes - {WHOLE}:
        return {}
    newer = Incident.objects.filter(node=OuterRef("node"), opened_at__gt=OuterRef("opened_at"))
    found = Incident.objects.annotate(of=Concat("node__cluster__name", Value("/"), "node__name")).filter(~Exists(newer), of__in=sorted(nodes))
    return {of: (public_id, title) for of, public_id, title in found.order_by("pk").values_list("of", "public_id", "title")}


def _event(telling: Telling, also: frozenset[int], incident: tuple[str, str] | None) -> Event:
    alert, kind, rule = telling.alert, telling.kind, telling.alert.rule
    verb = {FleetEvent.ALERT_FIRING: "fires", FleetEvent.ALERT_ESCALATED: "is not acknowledged", FleetEvent.ALERT_RESOLVED: "is over"}[kind]
    of = f" ({alert.subject})" if alert.subject else ""
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
    if telling.note:
        subject["note"] = telling.note
    cause = ""
    if incident is not None and telling.alert.rule.figure == INCIDENTS:
        subject["incident"], subject["cause"] = incident
        cause = f"Cause: {incident[1].rstrip('.')}."
    return Event(
        kind=kind,
        title=f"Test of the alert rule {rule.name}" if telling.is_test else f"{rule.name}{of} {verb}",
        text="Sent because somebody asked for a test. Nothing is wrong."
        if telling.is_test
        else " ".join(filter(None, (telling.note, said(alert), cause))),
        path=alert.subject if FIGURES[rule.figure].subjects == "team" else "",
        link="/activity/alerts/rules/" if telling.is_test else f"/activity/alerts/{alert.public_id}/",
        subject=subject,
        also=also,
    )


def report_of(alert: Alert) -> str:
    """The address of the team's cost lines of the month, where the figure is one of costs."""
    if alert.rule.figure not in COSTS or not FIGURES[alert.rule.figure].subjects or not alert.subject:
        return ""
    said = {"month": f"{alert.since:%Y-%m}", "by": "team", "key": alert.subject}
    return f"/cost/lines/?{urlencode(said)}"


def said(alert: Alert) -> str:
    """In words: `Idle share of allocated GPUs: 48.2%, limit 45%, since 12:04 UTC.`"""
    key = alert.rule.figure
    limit = figure_told(key, alert.rule.threshold)
    return f"{FIGURES[key].label}: {figure_told(key, alert.value)}, limit {limit}, since {alert.since:%Y-%m-%d %H:%M} UTC."
