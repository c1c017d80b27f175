"""Which services and templates may not be neighbours, as a reader may know it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quotas.permissions import Access, Can
from scheduler.models import Job, KeptApart
from scheduler.selectors.templates import templates_visible


@dataclass(frozen=True, slots=True)
class Pair:
    """A service that would break its level beside jobs of a template: with MIG instances of both on one node (`gpu`), or on one at all (`node`)."""

    service: str
    template: str
    where: str
    figure: str
    predicted_ms: int
    allowed_ms: int
    name: str = ""  # of the service, or of the template; empty: the reader may not know it
    ref: str = ""  # of the template

    @property
    def place(self) -> str:
        return "One node" if self.where == "node" else "MIG instances of one node"


def _pairs() -> list[Pair]:
    return [Pair(**pair) for pairs in KeptApart.objects.values_list("pairs", flat=True) for pair in pairs]


def apart_of_service(access: Access, job: Job) -> tuple[Pair, ...]:
    """Of a job that the reader may see, the worst first: beside templates that he may not see as well, without their names."""
    pairs = [pair for pair in _pairs() if pair.service == job.public_id]
    known = {one.key: one for one in templates_visible(access)} if pairs else {}
    found = [
        replace(pair, name=known[pair.template].title, ref=known[pair.template].ref) if pair.template in known else replace(pair, template="")
        for pair in pairs
    ]
    return tuple(sorted(found, key=lambda pair: (-pair.predicted_ms, pair.ref)))


def apart_of_template(access: Access, key: str) -> Sequence[Pair]:
    """The services that the reader may see, the worst first. Two queries at most."""
    pairs = [pair for pair in _pairs() if pair.template == key]
    if not pairs:
        return []
    jobs = Job.objects.filter(access.visible(Can.SEE, "quota__path"), public_id__in=[pair.service for pair in pairs])
    names = dict(jobs.values_list("public_id", "name"))
    found = [replace(pair, name=names[pair.service]) for pair in pairs if pair.service in names]
    return sorted(found, key=lambda pair: (-pair.predicted_ms, pair.service))
