"""A fleet on which everyone has what he asks for: a plan decides nothing there, and of what is kept nothing has to be taken up."""

from .kept import Kept
from .plan import Course
from .values import Scenario

STANDS = frozenset(("running", "starting", "reserved"))


def calm_course(scenario: Scenario, kept: Kept) -> Course | None:
    """The empty course of a calm fleet; None where anything could be decided, or only a closer look would tell.

    Everyone must stand whole, with nobody waiting, leaving or growing. What has changed since the last plan is taken up by the next one that is made.
    """
    forms = kept.forms
    if scenario.windows or forms.elastic or forms.desired or not kept.is_of(scenario):
        return None
    now, step = scenario.now, scenario.settings.fairness.step_ms
    wake: int | None = None
    for job in reversed(scenario.jobs):  # who came last waits most of all
        run = job.run
        if run.state not in STANDS or run.leaving or job.not_before is not None:
            return None
        form = forms.get(id(job.kind))
        if form is None or form.each is None or len(run.workers) < form.all_least:
            return None
        at = run.until
        if at is not None and at > now and (wake is None or at < wake):
            wake = at
        if run.reclaimed is not None and step:
            at = (run.reclaimed // step + 1) * step
            if at > now and (wake is None or at < wake):
                wake = at
    return Course((), wake, 0)
