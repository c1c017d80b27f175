"""What a page can follow. An app registers its topics when it starts; the hub and the snapshot view know them by name only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

DEFAULT_WINDOW_SECONDS = 0.5


class Viewer(Protocol):
    """As much of a person's access as the live feed must know."""

    def can_somewhere(self, capability: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class Topic:
    """One stream of changes.

    `load(ids)` gives the present values of changed rows. It runs once for all sockets, so it may hold nothing that only some viewers may see.
    `snapshot(viewer, query)` gives everything that a page starts from, names included, for this viewer. Both run in a thread with a database
    connection. `follows` names topics whose changes change this one too, as figures do that are added up from rows.
    """

    name: str
    capability: str
    load: Callable[[Sequence[int]], Any]
    snapshot: Callable[[Any, Mapping[str, str]], Mapping[str, Any]]
    window_seconds: float = DEFAULT_WINDOW_SECONDS
    follows: tuple[str, ...] = ()

    def open_to(self, viewer: Viewer) -> bool:
        return viewer.can_somewhere(self.capability)


_topics: dict[str, Topic] = {}


def topic_register(
    name: str,
    capability: str,
    load: Callable[[Sequence[int]], Any],
    snapshot: Callable[[Any, Mapping[str, str]], Mapping[str, Any]],
    *,
    window_seconds: float = DEFAULT_WINDOW_SECONDS,
    follows: Sequence[str] = (),
) -> Topic:
    """Make a topic known. Registering a name again replaces it, as a reloading server does."""
    topic = Topic(name, capability, load, snapshot, window_seconds, tuple(follows))
    _topics[name] = topic
    return topic


def topic_named(name: str) -> Topic | None:
    return _topics.get(name)


def topics_all() -> tuple[Topic, ...]:
    return tuple(_topics.values())


def topics_touched_by(name: str) -> tuple[str, ...]:
    """The topics that a change of `name` belongs to: itself, and those that follow it."""
    return tuple(topic.name for topic in _topics.values() if topic.name == name or name in topic.follows)
