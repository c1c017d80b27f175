"""The writing side of live pages: a change is a row with the next revision, and after commit every process is told that there is news."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction

from gpufleet.core.bulk import rows_insert
from gpufleet.core.models import Change
from gpufleet.core.prepared import is_sent_ahead, prepared_cursor
from gpufleet.core.times import MomentField, now

FEED_GROUP = "feed"
MOVED_AND_TOLD = """
    WITH moved AS (INSERT INTO feed (id, rev) VALUES (1, %s) ON CONFLICT (id) DO UPDATE SET rev = feed.rev + excluded.rev RETURNING rev),
    told AS (
        INSERT INTO change (rev, at, topic, rows) SELECT moved.rev + one.place, one.at, one.topic, one.rows
        FROM moved, (VALUES {}) AS one (place, at, topic, rows)
    )
    SELECT rev FROM moved
"""


def feed_publish(*, changes: Mapping[str, Sequence[Mapping[str, Any]]]) -> int:
    """Record changed rows by topic, one revision each, in the caller's transaction. Returns the newest revision.

    One call per transaction: a tick sends one hint and not one a job.
    """
    topics = [(topic, rows) for topic, rows in changes.items() if rows]
    if not topics:
        return feed_revision()
    with transaction.atomic(savepoint=False):
        with prepared_cursor(connections[DEFAULT_DB_ALIAS]) as cursor:
            cursor.execute(
                "INSERT INTO feed (id, rev) VALUES (1, %s) ON CONFLICT (id) DO UPDATE SET rev = feed.rev + excluded.rev RETURNING rev",
                [len(topics)],
            )
            (newest,) = cursor.fetchone()
        moment = now()
        first = newest - len(topics) + 1
        rows_insert(Change, ("rev", "at", "topic", "rows"), ((rev, moment, topic, list(rows)) for rev, (topic, rows) in enumerate(topics, first)))
        # Robust: what was committed is told as done, also where the channel layer is away.
        transaction.on_commit(lambda: feed_hint(newest), robust=True)
    return int(newest)


def feed_tell(*, changes: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """As `feed_publish`, for who does not ask for the revision: where statements are sent ahead it is not waited for."""
    database = connections[DEFAULT_DB_ALIAS]
    topics = [(topic, rows) for topic, rows in changes.items() if rows]
    if not topics or not is_sent_ahead(database):
        feed_publish(changes=changes)
        return
    moment = MomentField().get_db_prep_value(now(), database)
    given = [value for place, (topic, rows) in enumerate(topics, 1 - len(topics)) for value in (place, moment, topic, json.dumps(list(rows)))]
    cursor = prepared_cursor(database)
    cursor.execute(MOVED_AND_TOLD.format(", ".join(["(%s::bigint, %s::timestamptz, %s::text, %s::jsonb)"] * len(topics))), [len(topics), *given])

    def hint() -> None:
        with cursor:
            (newest,) = cursor.fetchone()
        feed_hint(newest)

    transaction.on_commit(hint, robust=True)


def feed_revision() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT rev FROM feed WHERE id = 1")
        row = cursor.fetchone()
    return int(row[0]) if row else 0


def feed_hint(rev: int) -> None:
    """Tell every web process that there is news. Losing it costs part of a second, as the hubs look for themselves, too."""
    layer = get_channel_layer()
    if hasattr(type(layer), "group_send_now"):
        # Beginning a loop and a connection to Redis for one message took as long as all statements of its transaction.
        layer.group_send_now(FEED_GROUP, {"type": "feed.news", "rev": rev})
        return
    # A layer inside of this process knows whether anybody listens; asking it would begin a thread for nobody. Redis' own may only be asked in a loop.
    if not hasattr(type(layer), "is_listened_to") or layer.is_listened_to:
        async_to_sync(layer.group_send)(FEED_GROUP, {"type": "feed.news", "rev": rev})
