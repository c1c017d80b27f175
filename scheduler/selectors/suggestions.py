"""What the filters of the list of jobs could be, while somebody types: as the newest jobs that he may see have it; and the teams of a submission."""

from collections import Counter
from collections.abc import Callable, Iterable

from django.db.models import QuerySet

from gpufleet.core.filters import search_words, word_spelt
from quotas.permissions import Access, Can, nodes_visible
from quotas.selectors.nodes import leaves_like
from scheduler.jobs.marks import is_cut
from scheduler.models import GpuType, Job, JobMark, MarkKind
from scheduler.selectors.templates import templates_visible

NEWEST = 1000
MOST = 20
# What is suggested by them are paths of teams.
OF_TEAMS = ("team", "quota")


def filter_suggestions(access: Access, field: str, typed: str) -> list[str]:
    """At most twenty, those that begin with what is typed first, then what most jobs have. Nothing for a field that suggests nothing."""
    access.must_somewhere(Can.SEE)
    known = SUGGESTED.get(field)
    return known(access, typed.replace("\0", "").strip()) if known else []


def _newest(access: Access) -> QuerySet[Job]:
    return Job.objects.filter(access.visible(Can.SEE, "quota__path")).order_by("-submitted_at", "-id")


def _column(name: str) -> Callable[[Access, str], list[str]]:
    def suggested(access: Access, typed: str) -> list[str]:
        return _closest((value for value in _newest(access).values_list(name, flat=True)[:NEWEST] if value), typed)

    return suggested


def _labels(access: Access, typed: str) -> list[str]:
    """What the last word could become; those before it stay."""
    words = search_words(typed)
    open_word = words[-1] if words and not typed.endswith(" ") else ""
    before = words[: len(words) - bool(open_word)]
    newest = _newest(access).values("pk")[:NEWEST]
    rows = JobMark.objects.filter(kind=MarkKind.LABEL, job_id__in=newest).values_list("key", "value")
    found = []
    for key, value in rows:
        found.append(key)
        if not is_cut(value):
            found.append(f"{key}={value}")
    return [" ".join([*map(word_spelt, before), word_spelt(one)]) for one in _closest(found, open_word)]


def _teams(access: Access, typed: str) -> list[str]:
    return list(nodes_visible(access).filter(path__icontains=typed).order_by("path").values_list("path", flat=True)[:MOST])


def teams_to_submit(access: Access, typed: str = "") -> list[str]:
    """Of the teams for which somebody may submit, those that the submission form offers."""
    return leaves_like(access, Can.SUBMIT, typed, most=MOST)


def _templates(access: Access, typed: str) -> list[str]:
    return _closest((one.ref for one in templates_visible(access)), typed)


def _types(access: Access, typed: str) -> list[str]:
    return _closest(GpuType.objects.values_list("name", flat=True), typed)


def _closest(values: Iterable[str], typed: str) -> list[str]:
    wanted = typed.casefold()
    counts = Counter(value for value in values if wanted in value.casefold())
    return sorted(counts, key=lambda value: (not value.casefold().startswith(wanted), -counts[value], value))[:MOST]


SUGGESTED: dict[str, Callable[[Access, str], list[str]]] = {
    "label": _labels,
    "type": _types,
    "team": _teams,
    "quota": teams_to_submit,
    "owner": _column("owner__username"),
    "cost_centre": _column("cost_centre"),
    "array": _column("array"),
    "template": _templates,
}
