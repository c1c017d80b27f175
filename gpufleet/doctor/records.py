"""Do the rows agree with each other? What the services keep true is checked again from the outside."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.db.models import Case, CharField, Count, F, Max, Q, Sum, Value, When
from django.db.models.functions import Concat

from gpufleet.core.models import Change, Feed, Sequence
from gpufleet.core.times import now
from gpufleet.doctor import Finding, some
from quotas.chargeback.months import chain_faults
from quotas.models import LedgerClock, QuotaNode
from scheduler.models import ENDED, HOLDING, Attempt, Gpu, Job, JobState, Placement
from scheduler.selectors.reconciliation import usage_differences

A_DEFECT = "This should not be possible: please report it with the lines of the log around the time."
# States in which the whole gang holds its GPUs. A degraded job has lost workers and says so.
WHOLE_GANG = [state for state in HOLDING if state != JobState.DEGRADED]


def _open_placements() -> Any:
    return Placement.objects.filter(until__isnull=True)


def ended_jobs_hold_nothing() -> Iterator[Finding]:
    held = _open_placements().filter(Q(job__state__in=ENDED) | Q(attempt__ended_at__isnull=False))
    jobs = list(held.order_by("job_id").values_list("job__public_id", flat=True).distinct()[:50])
    if jobs:
        yield Finding(f"GPUs are held for work that has ended: {some(jobs)}.", "They appear allocated but no job uses them.", A_DEFECT)
    attempts = list(
        Attempt.objects.filter(ended_at__isnull=True, job__state__in=ENDED).order_by("job_id").values_list("job__public_id", flat=True)[:50]
    )
    if attempts:
        yield Finding(f"Jobs have ended, but their last attempt has not: {some(attempts)}.", "Their time and cost keep growing.", A_DEFECT)


def no_gpu_is_held_twice() -> Iterator[Finding]:
    over = (
        _open_placements()
        .filter(gpu__isnull=False, mig__isnull=True)
        .values("gpu_id")
        .annotate(held=Sum("gpu_milli"))
        .filter(held__gt=1000)
        .order_by("gpu_id")
        .values_list("gpu_id", flat=True)
    )
    both = Gpu.objects.filter(
        placements__in=_open_placements().filter(mig__isnull=True), mig_instances__placements__in=_open_placements().filter(mig__isnull=False)
    ).values_list("pk", flat=True)
    gpus = list(Gpu.objects.filter(Q(pk__in=list(over[:50])) | Q(pk__in=list(both[:50]))).order_by("pk").values_list("public_id", flat=True))
    if gpus:
        yield Finding(f"More is allocated than exists of {some(gpus)}.", "Two jobs run into each other there.", A_DEFECT)


def gangs_are_whole() -> Iterator[Finding]:
    """A job in a holding state holds what the minimum of its gang needs."""
    held = Sum("placements__gpu_milli", filter=Q(placements__until__isnull=True))
    short = (
        Job.objects.filter(state__in=WHOLE_GANG, gpus_milli__gt=0)
        .annotate(held=held, parts=Count("placements", filter=Q(placements__until__isnull=True, placements__mig__isnull=False)))
        .filter(Q(held__isnull=True) | Q(held__lt=F("gpus_milli"), parts=0))
    )
    jobs = list(short.order_by("pk").values_list("public_id", flat=True)[:50])
    if jobs:
        yield Finding(f"Jobs run with a part of their gang: {some(jobs)}.", "They hold GPUs and can't compute.", A_DEFECT)
    stray = list(_open_placements().exclude(job__state__in=HOLDING).order_by("job_id").values_list("job__public_id", flat=True).distinct()[:50])
    if stray:
        yield Finding(f"Jobs that do not run hold GPUs: {some(stray)}.", "The GPUs are idle and taken.", A_DEFECT)


def nothing_sits_on_removed_hardware() -> Iterator[Finding]:
    gone = _open_placements().filter(Q(gpu__removed_at__isnull=False) | Q(node__removed_at__isnull=False) | Q(mig__removed_at__isnull=False))
    jobs = list(gone.order_by("job_id").values_list("job__public_id", flat=True).distinct()[:50])
    if jobs:
        yield Finding(f"Jobs hold hardware that was removed: {some(jobs)}.", "They can't be running there.", A_DEFECT)


def the_feed_counts_right() -> Iterator[Finding]:
    revision = Feed.objects.values_list("rev", flat=True).first() or 0
    newest = Change.objects.aggregate(newest=Max("rev"))["newest"] or 0
    if newest > revision:
        yield Finding(
            f"The feed stands at {revision}, but there is a change {newest}.", "Live pages miss what comes next.", f"Restart the console. {A_DEFECT}"
        )


def public_ids_are_below_the_counter() -> Iterator[Finding]:
    counter = Sequence.objects.filter(name="public").values_list("last", flat=True)
    for model in apps.get_models():
        if any(field.name == "public_id" for field in model._meta.get_fields()):
            newest = model._default_manager.order_by("-pk").values_list("public_id", flat=True).first()
            # Rows that a migration brings have names of their own (ar-first-3), which the counter never gives.
            _, dash, number = (newest or "").partition("-")
            # Read behind each table: whoever works meanwhile is given ids.
            if dash and number.isdecimal() and int(number) > (last := counter.first() or 0):
                yield Finding(
                    f"{newest} is above the counter of ids, which stands at {last}.",
                    "The same id could be given twice.",
                    "A table was restored alone; restore the whole database.",
                )


def the_tree_is_a_tree() -> Iterator[Finding]:
    expected = Case(
        When(parent__isnull=True, then=F("name")),
        default=Concat("parent__path", Value("/"), "name", output_field=CharField()),
        output_field=CharField(),
    )
    wrong = list(QuotaNode.objects.annotate(expected=expected).exclude(path=F("expected")).order_by("path").values_list("path", flat=True)[:50])
    if wrong:
        yield Finding(f"Nodes of the quota tree are not where their path says: {some(wrong)}.", "Permissions there may be wrong.", A_DEFECT)


def the_ledger_says_what_was_held() -> Iterator[Finding]:
    """Ledger, capacity timeline and placements, held against each other at every instant since the ledger began."""
    found = usage_differences()
    if found:
        lost = sum(difference.gpu_millis for difference in found)
        yield Finding(
            f"Ledger, timeline and placements differ {len(found)} times, by {lost / 3_600_000_000:,.3f} GPU-hours: {found[0].what}",
            "What is charged is not what was held.",
            A_DEFECT,
        )


def the_ledger_is_not_ahead_of_the_clock() -> Iterator[Finding]:
    ahead = LedgerClock.objects.filter(at__gt=now() + timedelta(seconds=10)).values_list("at", flat=True).first()
    if ahead is not None:
        yield Finding(
            f"The ledger's newest entry is of {ahead:%Y-%m-%d %H:%M:%S} UTC, which is still to come.",
            "A machine's clock was ahead, or this one is behind. Until then new usage counts as no time at all.",
            "Set the clocks of all machines by the same source.",
        )


def closed_months_are_what_was_closed() -> Iterator[Finding]:
    for fault in chain_faults():
        yield Finding(
            fault,
            "Somebody changed the books behind the console's back.",
            "Restore the month from a backup, and find out who can write the database.",
        )


CHECKS = {
    "closed months are what was closed": closed_months_are_what_was_closed,
    "the ledger says what was held": the_ledger_says_what_was_held,
    "the ledger is not ahead of the clock": the_ledger_is_not_ahead_of_the_clock,
    "ended jobs hold nothing": ended_jobs_hold_nothing,
    "no GPU is held twice": no_gpu_is_held_twice,
    "gangs are whole": gangs_are_whole,
    "nothing sits on removed hardware": nothing_sits_on_removed_hardware,
    "the feed counts right": the_feed_counts_right,
    "ids are below their counter": public_ids_are_below_the_counter,
    "the quota tree is a tree": the_tree_is_a_tree,
}
