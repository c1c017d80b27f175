"""What a reader may be told of others: the engine names jobs and quotas of the whole fleet, a page only those that its reader may see."""

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from django.db.models import CharField, Value

from quotas.models import QuotaNode
from quotas.permissions import Access, Can, is_within
from scheduler.models import Job

ANOTHER_JOB, ANOTHER_TEAM = "another job", "another team"
_JOB = re.compile(r"\bj-\d+\b")
# With the word for it that may stand before: `job j-3`, `service j-4`.
_CALLED = re.compile(r"\b(?:(job|service) )?(j-\d+)\b")
# The steps of a path, and what may stand around a path in a sentence.
_PATH = re.compile(r"(?<![\w./-])[\w-]+(?:/[\w.-]*[\w-])*(?![\w/-])")
# Several in a row are counted.
_SEVERAL = re.compile(r"\banother (job|service|team)(?:(?:, | and )another \1)+\b")


class Names:
    """Which jobs and quotas there are among those that sentences name: read once for all readers, and only when one is to be kept from something."""

    def __init__(self, texts: Iterable[Any]) -> None:
        self.named = frozenset(found for text in texts for found in _JOB.findall(str(text)))

    @cached_property
    def _found(self) -> tuple[dict[str, str], frozenset[str]]:
        nodes = QuotaNode.objects.order_by().values_list(Value("", CharField()), "path")
        rows = (
            nodes.union(Job.objects.filter(public_id__in=self.named).order_by().values_list("public_id", "quota__path"), all=True)
            if self.named
            else nodes
        )
        jobs, paths = {}, set()
        for job, path in rows:
            if job:
                jobs[job] = path
            else:
                paths.add(path)
        return jobs, frozenset(paths)

    @property
    def jobs(self) -> dict[str, str]:
        """Where the jobs lie, by their public ids."""
        return self._found[0]

    @property
    def paths(self) -> frozenset[str]:
        return self._found[1]


class Discretion:
    """Takes the names out of sentences that their reader may not know. One query at most, whatever the number of sentences, and none that
    another one with the same `Names` has asked."""

    def __init__(self, access: Access, texts: Iterable[Any] | Names) -> None:
        self._mine = access.paths(Can.SEE)
        self._sees_all = "" in self._mine
        self._names = texts if isinstance(texts, Names) else Names(() if self._sees_all else texts)

    def _hides_job(self, job: str) -> bool:
        if job not in self._names.named:
            return False
        path = self._names.jobs.get(job)
        return path is None or not any(is_within(path, mine) for mine in self._mine)

    def _hides_path(self, path: str) -> bool:
        # Who sees a node knows what it is called up to the top.
        return path in self._names.paths and not any(is_within(path, mine) or is_within(mine, path) for mine in self._mine)

    def text(self, text: str) -> str:
        if self._sees_all:
            return text
        text = _CALLED.sub(lambda found: f"another {found[1] or 'job'}" if self._hides_job(found[2]) else found[0], text)
        text = _PATH.sub(lambda found: ANOTHER_TEAM if self._hides_path(found[0]) else found[0], text)
        return _SEVERAL.sub(lambda found: f"{found[0].count('another')} other {found[1]}s", text)

    def value(self, value: Any) -> Any:
        """The same for plain data, such as the facts of a reason."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {key: self.value(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self.value(inner) for inner in value]
            case _:
                return value
