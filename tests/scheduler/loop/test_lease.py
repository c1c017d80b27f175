"""One leads at a time: whoever was paused is fenced off, whoever dies is replaced in seconds, and no wish is lost."""

import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from scheduler.models import Attempt, Job, JobState, Lease, Order, PlanRecord
from scheduler.services.loop.lease import (
    Fenced,
    lease_done,
    lease_kept,
    lease_pause,
    lease_release,
    lease_renew,
    lease_resume,
    lease_take,
    lease_want,
)
from scheduler.services.loop.tick import Memory
from scheduler.snapshots import Snapshot, Snapshots
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.scheduler.loop.worlds import Loop, leaf, state, submit, wishes
from tests.servers import Manage, Postgres, Program, wait_until

SECOND = timedelta(seconds=1)


@pytest.mark.django_db
class TestRow:
    def test_one_holds_it_and_each_taking_raises_the_epoch(self) -> None:
        first = lease_take(name="tick", holder="one", now=NOON)
        assert first is not None
        assert lease_take(name="tick", holder="two", now=NOON + 2 * SECOND) is None
        second = lease_take(name="tick", holder="two", now=NOON + 3 * SECOND)
        assert second is not None
        assert (first.epoch, second.epoch) == (1, 2)

    def test_what_is_given_back_is_free_at_once_and_who_left_it_behind_may_take_it_again(self) -> None:
        first = lease_take(name="tick", holder="one", now=NOON)
        assert first is not None
        assert lease_take(name="tick", holder="one", now=NOON) is not None  # its own thread died in the middle of a tick
        again = lease_take(name="tick", holder="one", now=NOON)
        assert again is not None
        lease_release(lease=again, now=NOON)
        assert lease_take(name="tick", holder="two", now=NOON) is not None

    def test_who_lost_it_neither_writes_nor_renews_nor_gives_back(self) -> None:
        old = lease_take(name="tick", holder="one", now=NOON)
        new = lease_take(name="tick", holder="two", now=NOON + 5 * SECOND)
        assert old is not None
        assert new is not None
        with pytest.raises(Fenced), transaction.atomic():
            lease_done(lease=old, next_wake_at=None)
        assert not lease_renew(lease=old, now=NOON + 5 * SECOND)
        lease_release(lease=old, now=NOON + 5 * SECOND)
        assert lease_take(name="tick", holder="three", now=NOON + 6 * SECOND) is None

    def test_a_wish_that_comes_while_a_plan_is_made_is_not_counted_as_seen(self) -> None:
        lease_want()
        held = lease_take(name="tick", holder="one", now=NOON)
        assert held is not None
        lease_want(n=2)
        with transaction.atomic():
            lease_done(lease=held, next_wake_at=None)
        assert wishes() == 2
        assert lease_release(lease=held, now=NOON)  # look again

    def test_only_the_first_of_many_wishes_calls(self, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any) -> None:
        calls: list[int] = []
        monkeypatch.setattr("scheduler.services.loop.lease.tick_call", lambda: calls.append(1))
        with django_capture_on_commit_callbacks(execute=True):
            for _ in range(5):
                lease_want()
        assert len(calls) == 1

    def test_a_clock_that_was_set_back_by_hours_does_not_stop_the_scheduler_for_hours(self) -> None:
        assert lease_take(name="tick", holder="one", now=NOON + timedelta(hours=6)) is not None
        assert lease_take(name="tick", holder="two", now=NOON) is not None

    def test_a_pause_stands_until_somebody_resumes(self) -> None:
        lease_pause(by="Ada", reason="Upgrade.", now=NOON)
        held = lease_take(name="tick", holder="one", now=NOON)
        assert held is not None
        assert held.paused
        lease_release(lease=held, now=NOON)
        lease_resume()
        assert wishes() == 1
        assert Lease.objects.get(name="tick").paused_at is None


def ends() -> datetime:
    expires_at = Lease.objects.get(name="tick").expires_at
    assert expires_at is not None
    return expires_at


@pytest.mark.django_db(transaction=True)
class TestKeeping:
    """What lasts longer than the lease holds it all the same, as long as it lives and nobody else has taken it."""

    @pytest.fixture(autouse=True)
    def often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("scheduler.services.loop.lease.RENEW_SECONDS", 0.05)

    def test_it_is_renewed_until_it_is_given_back(self) -> None:
        held = lease_take(name="tick", holder="one", now=NOON)
        assert held is not None
        moments = iter(NOON + number * SECOND for number in range(1, 1000))
        with lease_kept(lease=held, clock=lambda: next(moments)):
            wait_until(lambda: ends() > NOON + 6 * SECOND, what="the third renewal")
            assert lease_take(name="tick", holder="two", now=NOON + 3 * SECOND) is None
        lease_release(lease=held, now=NOON)

        assert ends() == NOON
        assert [thread for thread in threading.enumerate() if thread.name == "lease"] == []

    def test_who_lost_it_keeps_it_no_longer(self) -> None:
        old = lease_take(name="tick", holder="one", now=NOON)
        assert old is not None
        assert lease_take(name="tick", holder="two", now=NOON + 5 * SECOND) is not None
        with lease_kept(lease=old, clock=lambda: NOON + 60 * SECOND):
            wait_until(lambda: all(thread.name != "lease" for thread in threading.enumerate()), what="the keeper to give up")

        assert ends() == NOON + 8 * SECOND

    def test_who_hangs_loses_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("scheduler.services.loop.lease.MOST_RENEWALS", 3)
        held = lease_take(name="tick", holder="one", now=NOON)
        assert held is not None
        moments = iter(NOON + number * SECOND for number in range(1, 1000))
        with lease_kept(lease=held, clock=lambda: next(moments)):
            wait_until(lambda: all(thread.name != "lease" for thread in threading.enumerate()), what="the keeper to give up")

        assert ends() == NOON + 6 * SECOND

    def test_a_renewal_waits_for_the_transaction_that_it_protects_and_never_the_other_way_round(self) -> None:
        """On SQLite that transaction has the only right to write, elsewhere the lease's row."""
        held = lease_take(name="tick", holder="one", now=NOON)
        assert held is not None
        with lease_kept(lease=held, clock=lambda: NOON + 60 * SECOND):
            with transaction.atomic():
                lease_done(lease=held, next_wake_at=None)
                over = time.monotonic() + 0.5
                wait_until(lambda: time.monotonic() > over)
                lease_want()
                assert ends() == NOON + 3 * SECOND
            wait_until(lambda: ends() == NOON + 63 * SECOND, what="the renewal that has waited")
        assert lease_release(lease=held, now=NOON)


class Meanwhile(Snapshots):
    """Something happens between the look and the writing."""

    def __init__(self, what: Callable[[], object]) -> None:
        super().__init__()
        self.what: Callable[[], object] | None = what

    def take(self, **arguments: Any) -> Snapshot:
        snapshot = super().take(**arguments)
        what, self.what = self.what, None
        if what is not None:
            what()
        return snapshot


def interrupted(loop: Loop, what: Callable[[], object]) -> Memory:
    loop.memory.snapshots = Meanwhile(what)
    return loop.memory


@pytest.mark.django_db
def test_a_scheduler_that_was_paused_writes_nothing_once_another_leads() -> None:
    builders.node(gpus=8)
    job = submit(gpus=8)
    slow, quick = Loop("slow"), Loop("quick")
    quick.now = NOON + 10 * SECOND
    interrupted(slow, quick.tick)
    result = slow.tick()

    assert (result.led, result.fault) == (False, "The lease tick was taken over from slow.")
    assert state(job) == JobState.STARTING
    assert Attempt.objects.get().started_at == quick.now
    assert Order.objects.count() == 1
    assert PlanRecord.objects.count() == 1
    assert not fleet_faults()


@pytest.mark.django_db
def test_the_fence_holds_even_where_the_lease_is_lost_in_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch is checked in the transaction that writes, not only before it."""
    builders.node(gpus=8)
    job = submit(gpus=8)
    slow = Loop("slow")
    interrupted(slow, lambda: lease_take(name="tick", holder="quick", now=NOON + 10 * SECOND))
    result = slow.tick()

    assert not result.led
    assert state(job) == JobState.QUEUED
    assert not Attempt.objects.exists()
    assert not PlanRecord.objects.exists()
    assert wishes() == 1


@pytest.mark.django_db(transaction=True)
def test_threads_that_all_tick_and_submit_lose_no_wish_and_place_nothing_twice() -> None:
    for _ in range(4):
        builders.node(gpus=8)
    quota = leaf("team", 32)
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            loop = Loop(f"thread-{number}")
            for turn in range(12):
                loop.now = NOON + timedelta(milliseconds=10 * turn)
                if number < 2:
                    submit(quota, gpus=1, at=loop.now)
                loop.tick()
        except BaseException as fault:
            faults.append(fault)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not faults
    last = Loop("last")
    last.now = NOON + timedelta(minutes=1)
    last.tick()

    assert wishes() == 0
    assert Job.objects.filter(state=JobState.STARTING).count() == 24
    assert Attempt.objects.count() == 24
    assert not fleet_faults()


SET_UP = """
from tests import builders
from tests.scheduler.loop.worlds import leaf
for _ in range(4):
    builders.node(gpus=8)
leaf("team", 32)
"""
SUBMIT = """
from gpufleet.core.times import now
from tests.scheduler.loop.worlds import leaf, submit
for _ in range({count}):
    submit(leaf("team"), gpus=1, at=now())
"""
# As a worker does it: tick, and tick again.
LEAD = """
import time
from gpufleet.core.times import now
from scheduler.services.loop.tick import Memory, tick_run
from scheduler.services.loop.lease import lease_take
memory = Memory()
print("up", flush=True)
{first}
while True:
    tick_run(holder="{name}", now=now(), backends={{}}, memory=memory)
    time.sleep(0.05)
"""
# In the middle of a tick that takes for ever, long after the lease that it began with.
HANG = """
from scheduler.services.loop.lease import lease_kept
held = lease_take(name="tick", holder="{name}", now=now())
with lease_kept(lease=held, clock=now):
    print("holds", flush=True)
    time.sleep(4)  # a whole number of renewals, so that it is often killed or stopped in the middle of one
    print("still holds", flush=True)
    time.sleep(600)
"""
# Stopped when all its rows are written and none is committed; then it goes on, as a leader that finds another one leading.
STOP_IN_APPLY = """
import os, signal
from scheduler.services.loop import tick as module
whole = module.plan_apply
def stopped(**how):
    applied = whole(**how)
    module.plan_apply = whole
    print("wrote", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return applied
module.plan_apply = stopped
first = tick_run(holder="{name}", now=now(), backends={{}}, memory=memory)
print("led" if first.led else "fenced off", flush=True)
"""
SESSION = """
from django.db import connection
from scheduler.services.loop.lease import session_bounded
def show():
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        print(cursor.fetchone()[0])
for _ in range(2):
    with session_bounded():
        show()
    show()
"""
SHELL = ("shell", "--verbosity", "0", "-c")
LOOK = """
from tests.invariants import fleet_faults
from scheduler.models import Attempt, Job
print(fleet_faults(), Job.objects.filter(state="starting").count(), Attempt.objects.count())
"""


@pytest.mark.postgres
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)])
def test_a_leader_that_is_killed_or_stopped_in_its_tick_is_replaced_within_five_seconds(
    tmp_path: Any, migrated_postgres: Callable[[], str], sent: signal.Signals
) -> None:
    address = migrated_postgres()
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=address)
    manage.run(*SHELL, SET_UP + SUBMIT.format(count=3))
    programs: list[Program] = []
    try:
        judge_takeover(manage, address, sent, programs)
    finally:
        for program in programs:
            program.kill()

    assert manage.run(*SHELL, LOOK).stdout.split() == ["[]", "23", "23"]


def judge_takeover(manage: Manage, address: str, sent: signal.Signals, programs: list[Program]) -> None:
    """Two wait for their chance while one leads, which is then killed or stopped."""

    def started(code: str, name: str) -> Program:
        programs.append(manage.start("manage.py", *SHELL, code, name=name))
        return programs[-1]

    leader = started(LEAD.format(name="first", first=HANG.format(name="first")), "first")
    leader.wait_for(lambda: "holds" in leader.output(), what="the first leader holds the lease")
    for other in [started(LEAD.format(name=f"other-{number}", first=""), f"other-{number}") for number in (1, 2)]:
        other.wait_for(lambda other=other: "up" in other.output(), what="the others are up")  # type: ignore[misc]
    leader.wait_for(lambda: "still holds" in leader.output(), what="the first leader holds the lease for longer than it lasts")
    with psycopg.connect(address, autocommit=True) as looking:
        assert row_of(looking, "SELECT count(*) FROM attempt") == 0
        leader.process.send_signal(sent)
        killed = datetime.now(UTC)
        wait_until(lambda: row_of(looking, "SELECT count(*) FROM attempt") == 3, seconds=60, what="another one leads")
        took = row_of(looking, "SELECT min(at) FROM plan_record")
        assert row_of(looking, "SELECT holder FROM scheduler_lease WHERE name = 'tick'").startswith("other")
    # The lease lasts 3 s; how soon somebody leads again on a quiet machine is what the kills of `make soak` tell.
    assert (took - killed).total_seconds() < 20
    # Two that submit while two decide: nobody waits for another in a ring.
    for client in [started(SUBMIT.format(count=10), f"client-{number}") for number in (1, 2)]:
        assert client.process.wait(60) == 0, client.output()
    with psycopg.connect(address, autocommit=True) as looking:
        wait_until(lambda: row_of(looking, "SELECT count(*) FROM attempt") == 23, seconds=60, what="both go on, and place every job once")


@pytest.mark.postgres
def test_the_session_of_a_tick_is_bounded_and_given_back_as_it_was(tmp_path: Any, postgres: Postgres) -> None:
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=postgres.create_database())
    said = manage.run(*SHELL, SESSION).stdout.split()
    assert said == ["5s", "0", "5s", "0"]


@pytest.mark.postgres
def test_a_leader_that_is_stopped_in_apply_holds_nobody_up_and_is_fenced_off_when_it_goes_on(
    tmp_path: Any, migrated_postgres: Callable[[], str]
) -> None:
    address = migrated_postgres()
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=address)
    manage.run(*SHELL, SET_UP + SUBMIT.format(count=3))
    programs: list[Program] = []
    try:
        leader = manage.start("manage.py", *SHELL, LEAD.format(name="first", first=STOP_IN_APPLY.format(name="first")), name="first")
        programs.append(leader)
        leader.wait_for(lambda: "wrote" in leader.output(), what="the leader has written its plan")
        programs.append(manage.start("manage.py", *SHELL, LEAD.format(name="other", first=""), name="other"))
        with psycopg.connect(address, autocommit=True) as looking:
            wait_until(lambda: row_of(looking, "SELECT count(*) FROM attempt") == 3, seconds=60, what="another one leads")
            leader.process.send_signal(signal.SIGCONT)
            leader.wait_for(lambda: "fenced off" in leader.output(), what="the first one says that it does not lead")
        # It is as good as new: with the other one gone it leads again.
        programs[1].kill()
        manage.run(*SHELL, SUBMIT.format(count=1))
        with psycopg.connect(address, autocommit=True) as looking:
            wait_until(lambda: row_of(looking, "SELECT count(*) FROM attempt") == 4, seconds=60, what="the first one leads again")
    finally:
        for program in programs:
            program.kill()
    assert manage.run(*SHELL, LOOK).stdout.split() == ["[]", "4", "4"]


def row_of(looking: Any, query: str) -> Any:
    found = looking.execute(query).fetchone()
    return found[0] if found else None
