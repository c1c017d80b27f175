"""What the list of jobs is looked through by, beyond plain columns: each as a condition that an index answers."""

from collections.abc import Sequence

from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet

from scheduler.engine.model.reasons import REASONS
from scheduler.jobs.marks import label_mark
from scheduler.models import GpuType, JobMark, JobTemplate, MarkKind, Outlook
from scheduler.selectors.jobs import WAITING

# What a waiting job may be told stands in its way, in as few words as a filter or a line of a list has room for.
BLOCKERS = {
    "capacity": "Too few GPUs free",
    "fragmentation": "GPUs free, but scattered",
    "topology": "No domain has room",
    "limit": "Quota limit",
    "guarantee": "Beyond the guarantee",
    "share": "Above the fair share",
    "order": "Jobs ahead of it take the GPUs",
    "reservation": "Would delay a reservation",
    "window": "Kept for a window",
    "power": "Power cap",
    "colocation": "No boundary beside services",
    "victims": "No preemptible work frees enough GPUs",
    "balance": "Would leave another team worse off",
    "worth": "Too much work would be lost",
    "delay": "May not preempt yet",
    "moves": "Too many moves",
    "sharing": "No shared GPU has room",
    "repartition": "The limit of repartitions is reached",
    "passes": "Its scheduling pass is disabled",
    "shortage": "Guarantees exceed the fleet",
    "deadline": "Starts too late for its deadline",
    "no_type": "No such GPU type",
    "no_node": "No node fits",
    "empty_fleet": "Does not fit the empty fleet",
    "backoff": "Was evicted recently",
    "stale": "Was ended as stale just now",
    "held": "Not due yet",
    "hold": "Held back by a person",
    "retry": "Backs off after a failure",
    "dependency": "Waits for another job",
    "deferred": "Deferred to a better hour",
    "budget": "Its team's budget is used up",
    "aside": "Excluded from planning",
}
# So many jobs with one mark that to walk the list and look at each is quicker than to gather and sort them.
COMMON = 10_000
assert BLOCKERS.keys() == REASONS.keys(), "each reason has its words"


def labelled(word: str) -> Q:
    """`team` finds those that have the label, `team=nlp` those that have it with that value."""
    key, equals, value = word.partition("=")
    mark = label_mark(key, value)
    marks = JobMark.objects.filter(kind=mark.kind, key=mark.key, **({"value": mark.value} if equals else {}))
    return _marked(marks)


def of_type(name: str) -> Q:
    """Jobs that name a GPU type among those they accept, and those that have run on one. A part of a name means each type that holds it."""
    types = set(GpuType.objects.values_list("name", flat=True))
    names = [name] if name in types else sorted(known for known in types if name.casefold() in known.casefold()) or [name]
    named = {"key": names[0]} if len(names) == 1 else {"key__in": names}
    return _marked(JobMark.objects.filter(kind=MarkKind.TYPE, **named))


def _marked(marks: QuerySet[JobMark]) -> Q:
    return Q(Exists(marks.filter(job=OuterRef("pk")))) if _is_common(marks) else Q(pk__in=marks.values("job_id"))


def _is_common(marks: QuerySet[JobMark]) -> bool:
    """PostgreSQL keeps count of what is common, and takes the better way by itself; SQLite has to be told."""
    return connection.vendor == "sqlite" and marks.order_by()[COMMON : COMMON + 1].exists()


def made_from(said: str) -> Q:
    """By what descriptions name, `notebook` or `org/nlp:serve`, or by a template's id; with `@3` only that version."""
    named, _, number = said.partition("@")
    path, colon, name = named.rpartition(":")
    # A name may have been given up and taken again: what began with either is found.
    keys = list(JobTemplate.objects.filter(node__path=path, name=name).values_list("public_id", flat=True)) if colon else [named]
    made = Q(template=keys[0]) if len(keys) == 1 else Q(template__in=keys)
    if not number:
        return made
    return made & Q(template_version=int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else Q(pk__in=[])


def charged_to(cost_centre: str) -> Q:
    # Said twice, as the index has only jobs with a cost centre.
    return Q(cost_centre=cost_centre) & ~Q(cost_centre="")


def of_array(array: str) -> Q:
    return Q(array=array.lower()) & ~Q(array="")


def blocked_by(codes: Sequence[str]) -> Q:
    """Waiting jobs that are told any of these codes. What was told to a job that waits no more means nothing."""
    told = Q()
    for code in codes:
        told |= Q(codes__contains=f" {code} ")
    return Q(state__in=WAITING, pk__in=Outlook.objects.filter(told).values("job_id"))
