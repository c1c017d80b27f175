"""The reading side of the feed: what is new since a revision, and where each topic stands."""

from dataclasses import dataclass

from django.db.models import Max, Min

from gpufleet.core.live.feed import feed_revision
from gpufleet.core.models import Change

READ_LIMIT = 5_000


@dataclass(frozen=True, slots=True)
class News:
    """Changes after a revision, by topic: the newest revision and the ids of the rows. `complete` is false where some of them are gone already."""

    newest: int
    topics: dict[str, tuple[int, tuple[int, ...]]]
    complete: bool


@dataclass(frozen=True, slots=True)
class Positions:
    """Where the feed stands: the revision of each topic's newest change, and `floor` for topics of whose changes nothing is left."""

    newest: int
    topics: dict[str, int]
    floor: int


def feed_news(*, since: int) -> News:
    newest = feed_revision()
    if newest == since:
        return News(newest=newest, topics={}, complete=True)
    rows = list(Change.objects.filter(rev__gt=since).order_by("rev").values_list("rev", "topic", "rows")[:READ_LIMIT])
    # Revisions have no holes: the counter is raised in the transaction of the change. A hole is a change that has been pruned.
    complete = len(rows) == rows[-1][0] - since if rows else newest == since
    if rows:
        newest = rows[-1][0]
    topics: dict[str, tuple[int, tuple[int, ...]]] = {}
    for rev, topic, changed in rows:
        _, ids = topics.get(topic, (0, ()))
        topics[topic] = (rev, ids + tuple(row["id"] for row in changed if "id" in row))
    return News(newest=newest, topics=topics, complete=complete)


def feed_positions() -> Positions:
    """Read the counter first: a change that commits in between then lies above `newest`, or is a position, and is missed in neither case."""
    newest = feed_revision()
    topics = dict(Change.objects.values_list("topic").annotate(Max("rev")))
    oldest = Change.objects.aggregate(oldest=Min("rev"))["oldest"]
    newest = max([newest, *topics.values()])
    return Positions(newest=newest, topics=topics, floor=(oldest or newest + 1) - 1)
