"""What would unblock a waiting job, reason by reason, in one sentence each with the numbers and names that its reader may know.

What a plan wrote down is told, nothing is planned anew; whose GPUs they are comes from `scheduler.selectors.blocking`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from gpufleet.core.audit import SYSTEM
from gpufleet.core.templatetags.shell import THIN, duration, plural
from quotas.permissions import Access
from scheduler.engine.model.reasons import gpus
from scheduler.engine.tell.turns import Turn
from scheduler.models import ENDED, Job, JobEvent, Outlook
from scheduler.presenters.jobs import sentence
from scheduler.selectors.blocking import Holders, OutOfService, beyond, block_holders, out_of_service
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.jobs import Neighbour, job_held_by, jobs_named

NAMED = 3
BRIEFLY = 2


@dataclass(frozen=True, slots=True)
class Blocker:
    """One reason why a job waits, who holds what it is about, and what would end it. `at` is when that comes by itself, as far as it is known."""

    code: str
    text: str
    unblock: str = ""
    at: datetime | None = None
    holders: Holders | None = None

    @property
    def briefly(self) -> Holders | None:
        """For reasons behind the first one, or a page would be nothing but names."""
        return self.holders.fewer(BRIEFLY) if self.holders else None


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around a waiting job beside its reasons."""

    job: Job
    waits_for: Sequence[Neighbour] = ()
    turn: Turn | None = None
    held_by: JobEvent | None = None
    out_of_service: Mapping[str, OutOfService] = field(default_factory=dict)
    named: Mapping[str, Job] = field(default_factory=dict)  # jobs of its reasons that the reader may see
    at: datetime | None = None  # of its reasons


Sentence = tuple[str, datetime | None]
Reason = Mapping[str, Any]


def blockers(outlook: Outlook | None, discretion: Discretion, holders: Sequence[Holders | None], around: Around) -> list[Blocker]:
    """`holders` has for each reason who holds what it is about."""
    if outlook is None:
        return []
    found = []
    for reason, held in zip(outlook.reasons, holders, strict=True):
        code = str(reason.get("code", ""))
        text, at = _unblock(code, reason, held, around)
        # A terminal and a program have no thin spaces.
        told = sentence(discretion.text(text.replace(THIN, " ")))
        found.append(Blocker(code, sentence(discretion.text(str(reason.get("detail", "")))), told, at, held))
    return found


def blockers_now(
    access: Access,
    job: Job,
    outlook: Outlook | None,
    discretion: Discretion,
    *,
    waits_for: Sequence[Neighbour],
    turn: Turn | None,
    now: datetime,
) -> list[Blocker]:
    """The same with all that is looked up for it, in four queries at most. `discretion` has read the reasons and the words of the turn."""
    reserved = [str(reason["holder"]) for reason in outlook.reasons if reason.get("code") == "reservation" and "holder" in reason] if outlook else []
    named, at = jobs_named(access, reserved) if reserved else {}, outlook.at if outlook else None
    around = Around(job, waits_for, turn, job_held_by(job), out_of_service(outlook), named, at)
    return blockers(outlook, discretion, block_holders(access, outlook, now), around)


def _unblock(code: str, reason: Reason, held: Holders | None, around: Around) -> Sentence:
    known = _WORDS.get(code)
    try:
        return known(reason, held, around) if known is not None else ("", None)
    except KeyError:  # an outlook that an earlier version wrote says less
        return "", None


def _moment(value: Any) -> datetime | None:
    return parse_datetime(str(value)) if value else None


def _amount(milli: int, kind: str = "") -> str:
    """`3 H100 GPUs`."""
    return f"{gpus(milli)}{f' {kind}' if kind else ''} GPU{'s' * (milli != 1000)}"


def _listed(names: Sequence[str], more: int = 0) -> str:
    parts = [*names, *([f"{more:,} more"] if more else [])]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _enough(held: Holders | None) -> datetime | None:
    return held.enough_at if held else None


# Quotas


def _limit(reason: Reason, held: Holders | None, _: Around) -> Sentence:
    if "quota" not in reason or reason["needed"] > reason["limit"]:
        return "it never starts like this: it would have to ask for less than the limit allows, or the limit be raised", None
    missing = _amount(beyond(reason, "limit"), str(reason.get("type", "")))
    return f"{missing} of {reason['quota']} must be given back, or its limit be raised by as much", _enough(held)


def _guarantee(reason: Reason, held: Holders | None, _: Around) -> Sentence:
    missing = _amount(beyond(reason, "guaranteed"), str(reason.get("type", "")))
    whose = f"non-preemptible work of {reason['quota']}"
    told = f"{missing} that {whose} holds must be given back, its guarantee be raised by as much, or this job be preemptible"
    return told, _enough(held) if reason["needed"] <= reason["guaranteed"] else None


def _share(reason: Reason, held: Holders | None, _: Around) -> Sentence:
    if "needed" not in reason:
        return "it starts on GPUs that become free", None
    missing = _amount(beyond(reason, "fair"), str(reason.get("type", "")))
    rest = f"; {reason['quota']} must give {missing} back before it may take any from others" if reason["needed"] <= reason["fair"] else ""
    return f"it starts as soon as the requested GPUs are idle{rest}", _enough(held) if rest else None


def _victims(reason: Reason, *_: Any) -> Sentence:
    above = reason.get("above")
    if above:
        return f"running jobs must end by themselves, or {_listed(list(map(str, above))[:NAMED], max(0, len(above) - NAMED))} use still more", None
    if "quota" in reason:
        return "running jobs must end: no other team is above its fair share", None
    return "running jobs must end: preemptible work is too scattered or still protected", None


def _balance(reason: Reason, *_: Any) -> Sentence:
    return f"running jobs must end by themselves, {reason['quota']} use less, or {reason['other']} use more", None


def _worth(*_: Any) -> Sentence:
    return "the jobs in its way must have less to lose, as right after a checkpoint of theirs, or it must fit inside its guarantee", None


def _shortage(reason: Reason, _: Holders | None, around: Around) -> Sentence:
    kind = str(reason.get("type", ""))
    missing = _amount(round(1000 * (reason["guaranteed"] - reason["healthy"])), kind)
    return f"{missing} must come back into service, or guarantees be lowered by as much{_out(around, kind)}", None


# Room


def _out(around: Around, kind: str) -> str:
    out = around.out_of_service.get(kind)
    return f"; {plural(out.gpus, 'GPU')} {'is' if out.gpus == 1 else 'are'} out of service on {_listed(out.nodes, out.more_nodes)}" if out else ""


def _capacity(reason: Reason, held: Holders | None, around: Around) -> Sentence:
    kind = str(reason["type"])
    missing = 1000 * (reason["needed"] - reason["free"])
    return f"{_amount(missing, kind)} more must come free where it may run{_out(around, kind)}", _enough(held)


def _fragmentation(reason: Reason, held: Holders | None, around: Around) -> Sentence:
    kind = str(reason.get("type", ""))
    if reason.get("lacks"):
        return f"jobs on a node that suits it must give back {_listed(list(map(str, reason['lacks'])))}, or it ask for less of it", None
    if "node" not in reason:
        return f"GPUs that lie together must come free, or its workers and NVLink groups be smaller{_out(around, kind)}", None
    short = reason["needed"] - reason["room"]
    many = "one more node must have" if short == 1 else f"{short} more nodes must each have"
    near = f"{reason['node'].partition('/')[2]} is nearest and lacks {reason['each'] - reason['free_there']}"
    return f"{many} {_amount(1000 * reason['each'])} free at once; {near}{_out(around, kind)}", _enough(held) if short == 1 else None


def _topology(reason: Reason, held: Holders | None, around: Around) -> Sentence:
    missing = 1000 * (reason["needed"] - reason["room"]) * reason["each"]
    if reason.get("lacks"):
        what = _listed(list(map(str, reason["lacks"])))
        return f"jobs in {reason['domain']} must give back {what}, or it ask for less of it or do with a wider level", None
    elsewhere = ", where its other workers stand" if reason.get("pinned") else f" or in another {reason['level']}"
    told = f"{_amount(missing)} more must come free in {reason['domain']}{elsewhere}, or it must do with a wider level"
    return f"{told}{_out(around, str(reason.get('type', '')))}", _enough(held)


def _sharing(reason: Reason, held: Holders | None, _: Around) -> Sentence:
    asked = reason.get("asked")
    if not asked:
        return "instances in use must be given back, so that a GPU can be split for it", None
    return f"{asked} on {reason['type']} must be given back, or a whole GPU of it lie idle", _enough(held)


def _repartition(reason: Reason, *_: Any) -> Sentence:
    if reason.get("off"):
        return "an operator must enable repartitioning, or matching instances must be released", None
    return "it is split within the hour, as operators let so many GPUs be split in one", _moment(reason.get("until"))


def _reservation(reason: Reason, _: Holders | None, around: Around) -> Sentence:
    holder = str(reason["holder"])
    job = around.named.get(holder)
    who = f"{holder} {job.name} of {job.quota.path}" if job else holder
    what = f", for which {_amount(round(1000 * reason['gpus']))} are kept," if reason.get("gpus") else ""
    return f"{who}{what} must have started, or this job be sure to end before that start, by a shorter limit", _moment(reason.get("at"))


def _window(reason: Reason, *_: Any) -> Sentence:
    return f"{reason['window']} must be over, or this job be sure to end before it begins, by a shorter limit", None


def _power(reason: Reason, _: Holders | None, around: Around) -> Sentence:
    if reason.get("never"):
        return "it never starts like this: fewer GPUs, a shorter limit, or a higher cap would help", None
    start, less = _moment(reason.get("start")), "fewer GPUs need less power"
    if start is not None and around.at is not None and start > around.at:
        return f"a time limit that ends before the cap begins, or a higher cap; {less}", None
    if reason["needed_watts"] > reason["cap_watts"]:
        return f"the cap must end or be raised; {less}", _moment(reason.get("end"))
    return f"running jobs of the pool must end, or the cap end or be raised; {less}", None


def _colocation(reason: Reason, *_: Any) -> Sentence:
    node = reason["node"]
    if "measured_ms" in reason:
        return f"another node must have room; beside {reason['beside']} it may run again some time after the breach is over", None
    if "predicted_ms" in reason:
        other, service = (reason["beside"], "its own") if reason["beside_class"] != "inference" else ("this job", f"{reason['beside']}'s")
        return f"another node must have room, or {other} run elsewhere; {service} service level may be set higher", None
    if "boundary" not in reason:
        return f"another node must have room, or those on {node} end", None
    what = "pin jobs to their processors" if reason["boundary"] == "cores" else "enforce MIG instances"
    return f"another node must have room, {reason['beside']} end, or an operator verify that {node} can {what}", None


# Its turn, and what it waits for whatever the fleet has


def _order(_: Reason, __: Holders | None, around: Around) -> Sentence:
    turn = around.turn
    if turn is None or turn.before is None:
        return "those before it must have started; a higher priority brings it forward within its team", None
    ahead = f"{turn.number - 1:,} {'is' if turn.number == 2 else 'are'} asked before it, the last of them {turn.before.name}"
    return f"{ahead}; a higher priority brings it forward within its team", None


def _dependency(_: Reason, __: Holders | None, around: Around) -> Sentence:
    open_ = [one for one in around.waits_for if one.job.state not in ENDED]
    if not open_:
        return "the jobs before it must end", None
    named = [f"{one.job.public_id} {one.job.name} ({one.job.state}) must {'complete' if one.if_completed else 'end'}" for one in open_ if one.named]
    hidden = len(open_) - len(named)
    parts = [*named[:NAMED], *([plural(len(named) - NAMED, "more job")] if len(named) > NAMED else [])]
    return _listed([*parts, *([plural(hidden, "job of another team", "jobs of other teams") + " must end"] if hidden else [])]), None


def _hold(_: Reason, __: Holders | None, around: Around) -> Sentence:
    event = around.held_by
    by = event.actor_name if event is not None and event.actor_name != SYSTEM.name else ""
    said = f" (“{event.cause}”)" if event is not None and event.cause not in ("", "Held back.") else ""
    told = f"{by or 'somebody'} holds it back{said}; its owner or a manager of jobs of {around.job.quota.path} can release it"
    return told, None


def _retry(reason: Reason, _: Holders | None, around: Around) -> Sentence:
    job = around.job
    tries = f": {job.failures} of {plural(job.retry_limit, 'retry', 'retries')} used" if job.retry_limit else ""
    return f"it is retried automatically{tries}", _moment(reason.get("until"))


def _aside(_: Reason, __: Holders | None, around: Around) -> Sentence:
    return "an operator must check it; the scheduler retries automatically", around.job.set_aside_until


def _empty_fleet(reason: Reason, *_: Any) -> Sentence:
    if "group" in reason:
        return "it never starts like this: smaller NVLink groups, or hardware with larger islands would help", None
    if "gpus_needed" in reason:
        return f"it never starts like this: fewer or smaller workers, a wider level than {reason['level']}, or more hardware would help", None
    return f"it never starts like this: {reason['holds']} workers at most, a wider level than {reason['level']}, or more hardware would help", None


def _deadline(reason: Reason, *_: Any) -> Sentence:
    start, deadline = _moment(reason["start"]), _moment(reason["deadline"])
    assert start is not None and deadline is not None
    if "passed" in str(reason["detail"]):
        return "a later deadline would help", None
    length = duration((deadline - start).total_seconds()) if deadline > start else ""
    return f"a later deadline{f', or a limit below {length},' if length else ''} would help, as would all that starts it sooner", None


def _says(text: str, moment: str = "") -> Callable[[Reason, Holders | None, Around], Sentence]:
    return lambda reason, _, __: (text, _moment(reason.get(moment)) if moment else None)


_WORDS: dict[str, Callable[[Reason, Holders | None, Around], Sentence]] = {
    "held": _says("it becomes due automatically; an earlier start time lets it in sooner", "until"),
    "stale": _says("the next plan looks at it again, within seconds"),
    "backoff": _says("it can borrow again after its back-off; within its guarantee it can start at any time", "until"),
    "no_type": _says("it never starts like this: it must accept a GPU type that the fleet has"),
    "no_node": _says("it never starts like this: it must ask for less on one node, or such a node be added"),
    "empty_fleet": _empty_fleet,
    "limit": _limit,
    "guarantee": _guarantee,
    "capacity": _capacity,
    "fragmentation": _fragmentation,
    "topology": _topology,
    "reservation": _reservation,
    "window": _window,
    "power": _power,
    "colocation": _colocation,
    "share": _share,
    "victims": _victims,
    "balance": _balance,
    "worth": _worth,
    "delay": _says("its own preemption delay must be over, or GPUs come free by themselves", "until"),
    "moves": _says("some running jobs must end, so that fewer have to move; operators say how many may"),
    "sharing": _sharing,
    "repartition": _repartition,
    "passes": _says("an operator must switch on the passes that could serve it"),
    "shortage": _shortage,
    "deadline": _deadline,
    "order": _order,
    "hold": _hold,
    "retry": _retry,
    "dependency": _dependency,
    "deferred": _says("it becomes due automatically; Start now ends the deferral", "until"),
    "budget": _says("it starts with the budget's next period, with a larger amount, or with an exception; quota admins set both"),
    "aside": _aside,
}
