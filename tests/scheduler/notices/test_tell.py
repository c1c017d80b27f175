"""The task that tells: each of its three parts has its turn, whatever becomes of the others."""

from datetime import timedelta

import pytest

from scheduler import tasks
from scheduler.models import Delivery
from scheduler.notify.outgoing import Outcome
from scheduler.services.notify import outbox
from scheduler.services.notify.delivering import deliveries_turn
from tests import builders
from tests.servers import Manage

pytestmark = pytest.mark.django_db


def test_messages_are_made_for_some_seconds_at_most(monkeypatch):
    """However much happens meanwhile: what is made has to be sent as well."""
    seconds = iter(range(10_000))
    turns = []

    def never_empty(*, now):
        turns.append(now)
        return 500

    monkeypatch.setattr(outbox, "outbox_turn", never_empty)
    made = outbox.outbox_turns(clock=lambda: builders.NOON + timedelta(seconds=next(seconds)))

    assert made == 500 * len(turns)
    assert 0 < len(turns) <= 10


def test_messages_are_made_until_there_are_none(monkeypatch):
    left = [3, 500, 500]
    monkeypatch.setattr(outbox, "outbox_turn", lambda *, now: left.pop() if left else 0)

    assert outbox.outbox_turns(clock=lambda: builders.NOON) == 1003


@pytest.mark.parametrize("broken", ["outbox_turns", "sendings_turn"])
def test_what_is_wrong_with_one_part_keeps_no_other_from_its_turn(monkeypatch, caplog, broken):
    def fail(**_):
        raise ValueError("a happening that nobody can read")

    sent = []

    def deliveries(*, clock, rng):
        return deliveries_turn(clock=clock, rng=rng, send=lambda url, *_: sent.append(url) or Outcome(200, 1, ""))

    monkeypatch.setattr(tasks, broken, fail)
    monkeypatch.setattr(tasks, "deliveries_turn", deliveries)
    hook = builders.webhook()
    builders.delivery(hook, state="waiting", done_at=None, made_at=tasks.now())

    assert tasks.tell() == 1

    assert sent == [hook.url]
    assert Delivery.objects.get().state == "delivered"
    assert "a happening that nobody can read" in caplog.text


ORDER = """
from datetime import timedelta
from scheduler.services.notify.delivering import AT_ONCE, deliveries_claim
from tests import builders
from tests.builders import NOON

def waiting(name, hours, **fields):
    hook = builders.webhook(builders.quota(), name=name, **fields)
    builders.delivery(hook, state="waiting", done_at=None, due_at=NOON - timedelta(hours=hours), made_at=NOON - timedelta(hours=hours))

for number in range(2 * AT_ONCE):
    waiting(f"ill-{number}", 5, failing_since=NOON - timedelta(days=1))
waiting("late", 1)
waiting("later", 2)
print(",".join(one.hook.name for one in deliveries_claim(now=NOON)[:3]))
"""
FIRST = "later,late,ill-0"


def test_hooks_that_fail_are_served_last_and_who_has_waited_longest_first(capsys):
    exec(ORDER, {})  # what the next test has PostgreSQL do

    assert capsys.readouterr().out.strip() == FIRST


@pytest.mark.postgres
def test_they_are_so_on_postgresql_too(tmp_path, migrated_postgres):
    """It sorts what has no time last by itself: with many hooks that fail none of the others was served."""
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=migrated_postgres())

    assert manage.run("shell", "--verbosity", "0", "-c", ORDER).stdout.split() == [FIRST]
