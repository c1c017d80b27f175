"""The jobs of who plays a fleet forward, followed step by step: nobody compares lists of them, nor looks again at those that stay as they are.

He says with every scenario what has become of the list since the one before. Whether these steps lead to the jobs of the scenario is looked at; where
he says nothing the list is read anew.
"""

from collections.abc import Sequence
from enum import IntEnum

from ..model.values import Job
from .form import Forms

# A place of the list; who stands there now, None where nobody came in his stead; by how much the list has become longer.
Step = tuple[int, Job | None, int]

STANDS = frozenset(("running", "starting", "reserved"))


class Open(IntEnum):
    """Of whom more matters to a calm fleet than that he stands, whatever the time."""

    LOUD = 0  # he may be served in more ways than one, or something may become of him
    WAITS = 1  # for nothing but a place, of which counting decides
    TIMED = 2  # stands as he stood until a moment comes


class Roll:
    """The jobs as of the last course, and what has become of them since a cluster was made."""

    def __init__(self, jobs: tuple[Job, ...], forms: Forms) -> None:
        self.jobs = self._base = jobs
        self._line = [*jobs]
        self._steps: list[Step] = []  # from the base to the line
        self._forms = forms
        self.open: dict[int, tuple[Open, Job]] = {}  # by identity
        self.count = [0] * len(Open)
        self._strange: list[Job] = []  # of kinds that nobody has looked at yet
        for job in jobs:
            self._look_at(job)

    def follow(self, steps: Sequence[Step], jobs: tuple[Job, ...]) -> None:
        """Take up what has become of the jobs since the last course."""
        line, known = self._line, self.open
        if self._strange:
            strange, self._strange = self._strange, []
            for job in strange:
                if self._was_open(job):
                    self._look_at(job)
        for place, now, longer in steps:
            if longer > 0:
                assert now is not None
                line.insert(place, now)
            else:
                if id(line[place]) in known:
                    self._was_open(line[place])
                if now is None:
                    del line[place]
                    continue
                line[place] = now
            self._look_at(now)
        assert tuple(line) == jobs, "the steps lead to the jobs of the scenario"
        self._steps += steps
        self.jobs = jobs

    def steps_between(self, one: tuple[Job, ...], other: tuple[Job, ...]) -> Sequence[Step] | None:
        """What has become of the one list when it was the other, where that is known."""
        return self._steps if one is self._base and other is self.jobs else None

    def begin(self, jobs: tuple[Job, ...]) -> None:
        """A cluster is made of these: what has become of earlier ones nobody asks any more."""
        if jobs is self.jobs:
            self._base = jobs
            self._steps = []

    def _was_open(self, job: Job) -> bool:
        """Forget about a job; whether there was anything to forget."""
        entry = self.open.pop(id(job), None)
        if entry is None:
            return False
        self.count[entry[0]] -= 1
        return True

    def _look_at(self, job: Job) -> None:
        run, form = job.run, self._forms.get(id(job.kind))
        if form is None or (form.each is None and not form.shared) or job.not_before is not None:
            what = Open.LOUD
            if form is None:
                self._strange.append(job)
        elif run.state in STANDS:
            if run.leaving or len(run.workers) < form.all_least:
                what = Open.LOUD
            elif run.until is None and run.reclaimed is None:
                return
            else:
                what = Open.TIMED
        else:
            waits = run.state == "queued" and run.last_evicted is None and (form.plain or form.shared) and not form.delay
            what = Open.WAITS if waits else Open.LOUD
        self.open[id(job)] = what, job
        self.count[what] += 1
