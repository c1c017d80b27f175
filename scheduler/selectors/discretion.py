"""What a reader may be told of others: the engine names jobs and quotas of the whole fleet, a page only those that its reader may see."""

import re
from collections.abc import Iterable
from typing import Any

from quotas.models import QuotaNode
from quotas.permissions import Access, Can, is_within
from scheduler.models import Job

ANOTHER_JOB, ANOTHER_TEAM = "another job", "another team"
_JOB = re.compile(r"\bj-\d+\b")
# The steps of a path, and what may stand around a path in a sentence.
_PATH = re.compile(r"(?<![\w./-])[\w-]+(?:/[\w.-]*[\w-])*(?![\w/-])")


class Discretion:
    """Takes the names out of sentences that their reader may not know. Two queries at most, whatever the number of sentences."""

    def __init__(self, access: Access, texts: Iterable[Any]) -> None:
        paths = access.paths(Can.SEE)
        self._sees_all = "" in paths
        self._hidden_paths: frozenset[str] = frozenset()
        self._hidden_jobs: frozenset[str] = frozenset()
        if self._sees_all:
            return
        named = {found for text in texts for found in _JOB.findall(str(text))}
        if named:
            visible = Job.objects.filter(access.visible(Can.SEE, "quota__path"), public_id__in=named).values_list("public_id", flat=True)
            self._hidden_jobs = frozenset(named) - set(visible)
        known = QuotaNode.objects.values_list("path", flat=True)
        # Who sees a node knows what it is called up to the top.
        self._hidden_paths = frozenset(path for path in known if not any(is_within(path, mine) or is_within(mine, path) for mine in paths))

    def text(self, text: str) -> str:
        if self._sees_all:
            return text
        text = _JOB.sub(lambda found: ANOTHER_JOB if found[0] in self._hidden_jobs else found[0], text)
        return _PATH.sub(lambda found: ANOTHER_TEAM if found[0] in self._hidden_paths else found[0], text)

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
