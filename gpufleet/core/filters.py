"""Filters of list pages. Each reads its own parameter of the address, turns it into a condition, and says in a sentence what it can't read."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_

from django.db.models import Q
from django.utils.dateparse import parse_date, parse_datetime

Choices = Sequence[tuple[str, str]]
MOST_WORDS = 10


@dataclass(frozen=True, slots=True)
class Option:
    value: str
    label: str
    chosen: bool
    count: int | None = None


@dataclass(slots=True)
class Bound:
    """A filter with what the address says about it: what the form shows, and what the query gets."""

    key: str
    label: str
    kind: str
    value: str = ""
    options: list[Option] = field(default_factory=list)
    condition: Q | None = None
    problem: str = ""
    hint: str = ""
    suggests: bool = False
    moment: datetime | None = None

    @property
    def values(self) -> list[tuple[str, str]]:
        """What it filters by now: each value with its word."""
        if self.condition is None:
            return []
        return [(option.value, option.label) for option in self.options if option.chosen] or [(self.value, self.value)]

    @property
    def several(self) -> bool:
        """Whether the address names more than one value, so that the form must let all of them stand."""
        return sum(option.chosen for option in self.options) > 1

    @property
    def active(self) -> bool:
        return self.condition is not None


@dataclass(frozen=True, slots=True)
class Choice:
    """One or more of a set of values. `apply` makes the condition where a plain look-up in `path` does not do; `counts` must be cheap."""

    key: str
    label: str
    choices: Choices | Callable[[], Choices]
    path: str = ""
    apply: Callable[[Sequence[str]], Q] | None = None
    counts: Callable[[], Mapping[str, int]] | None = None

    def bind(self, values: Sequence[str]) -> Bound:
        choices = self.choices() if callable(self.choices) else self.choices
        known = {value for value, _ in choices}
        wanted = [value for value in dict.fromkeys(values) if value]
        unknown = [value for value in wanted if value not in known]
        chosen = [value for value in wanted if value in known]
        counts = self.counts() if self.counts else {}
        bound = Bound(self.key, self.label, "choice")
        bound.options = [Option(value, label, value in chosen, counts.get(value, 0) if self.counts else None) for value, label in choices]
        if chosen:
            bound.condition = self.apply(chosen) if self.apply else Q(**{f"{self.path or self.key}__in": chosen})
        if unknown:
            named = ", ".join(f"“{value[:40]}”" for value in unknown)
            allowed = ", ".join(value for value, _ in choices) or "nothing yet"
            bound.problem = f"{self.label} can't be {named}; it can be {allowed}."
        return bound


@dataclass(frozen=True, slots=True)
class Text:
    """A part of a text, in any case; or whatever `apply` makes of it. `suggests`: the page asks for what it could be while somebody types."""

    key: str
    label: str
    path: str = ""
    lookup: str = "icontains"
    apply: Callable[[str], Q] | None = None
    hint: str = ""
    suggests: bool = False

    def bind(self, values: Sequence[str]) -> Bound:
        value = (values[-1] if values else "").strip()
        bound = Bound(self.key, self.label, "text", value, hint=self.hint, suggests=self.suggests)
        if "\0" in value:
            bound.value, bound.problem = "", f"{self.label} holds a character that no text has."
        elif value:
            bound.condition = self.apply(value) if self.apply else Q(**{f"{self.path or self.key}__{self.lookup}": value})
        return bound


@dataclass(frozen=True, slots=True)
class Words:
    """Words that must all hold, in one value or in several; those in double quotes stay together."""

    key: str
    label: str
    apply: Callable[[str], Q]
    hint: str = ""
    suggests: bool = False

    def bind(self, values: Sequence[str]) -> Bound:
        words = list(dict.fromkeys(word for value in values for word in search_words(value)))
        bound = Bound(self.key, self.label, "text", " ".join(map(word_spelt, words)), hint=self.hint, suggests=self.suggests)
        if any("\0" in word for word in words):
            bound.value, bound.problem = "", f"{self.label} holds a character that no text has."
        elif len(words) > MOST_WORDS:
            bound.problem = f"{self.label} takes at most {MOST_WORDS} words."
        elif words:
            bound.condition = reduce(and_, map(self.apply, words))
        return bound


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    key: str
    label: str
    when: Q
    yes: str = "Yes"
    no: str = "No"

    def bind(self, values: Sequence[str]) -> Bound:
        value = values[-1] if values else ""
        bound = Bound(self.key, self.label, "choice", value)
        bound.options = [Option("yes", self.yes, value == "yes"), Option("no", self.no, value == "no")]
        if value in ("yes", "no"):
            bound.condition = self.when if value == "yes" else ~self.when
        elif value:
            bound.problem = f"{self.label} can't be “{value[:40]}”; it can be yes or no."
        return bound


@dataclass(frozen=True, slots=True)
class Moment:
    """From, or up to and with, a day or a moment in UTC. `open_ended`: the path is the end of a span that may go on; what reaches beyond matches."""

    key: str
    label: str
    path: str
    until: bool = False
    open_ended: bool = False

    def bind(self, values: Sequence[str]) -> Bound:
        value = (values[-1] if values else "").strip()
        bound = Bound(self.key, self.label, "date", value)
        if not value:
            return bound
        try:
            day = parse_date(value)
            moment = datetime(day.year, day.month, day.day, tzinfo=UTC) if day else parse_datetime(value)
            if moment is None:
                raise ValueError
            if day and self.until:
                moment += timedelta(days=1)
        except (ValueError, OverflowError):
            bound.problem = f"{self.label} can't be “{value[:40]}”; write a day as 2026-11-20 or a moment as 2026-11-20T09:30:00Z."
            return bound
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        bound.kind = "date" if day else "text"
        bound.moment = moment
        if self.open_ended:
            bound.condition = Q(**{f"{self.path}__isnull": True}) | Q(**{f"{self.path}__gt": moment})
            return bound
        lookup = ("lt" if day else "lte") if self.until else "gte"
        bound.condition = Q(**{f"{self.path}__{lookup}": moment})
        return bound


Filter = Choice | Text | Words | Flag | Moment


def search_condition(text: str, paths: Sequence[str]) -> Q:
    """Rows in which every word of the text stands in some of the fields; words in double quotes stay together."""
    condition = Q()
    for word in search_words(text):
        anywhere = Q()
        for path in paths:
            anywhere |= Q(**{f"{path}__holds": word})
        condition &= anywhere
    return condition


# Words stand apart by spaces and quotes; within quotes a doubled one is a quote itself. What is not closed runs to the end.
_WORDS = re.compile(r'"((?:[^"]|"")*)(?:"|$)|[^\s"]+')


def search_words(text: str) -> list[str]:
    """`a "b c" d "a ""b"" c" e` -> [a, b c, d, a "b" c, e]."""
    words = (found[0] if found[1] is None else found[1].replace('""', '"').strip() for found in _WORDS.finditer(text))
    return [word for word in words if word]


def word_spelt(word: str) -> str:
    """As `search_words` reads it."""
    doubled = word.replace('"', '""')
    return f'"{doubled}"' if '"' in word or any(letter.isspace() for letter in word) else word
