"""The worker's surroundings: the broker of the one-process console, beat's timetable, and what becomes of connections between tasks."""

import time
from datetime import timedelta
from threading import Thread

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from django.db import DatabaseError, connection, transaction
from kombu import Connection, Consumer, Queue

from gpufleet import broker
from gpufleet.celery import Timetable, app
from gpufleet.core.models import Progress
from gpufleet.core.tasks import heartbeat

WORK = Queue("work")


class CountingTransport(broker.Transport):
    """Counts how often somebody looks for messages."""

    looks = 0

    def _drain_channel(self, channel, callback, timeout=None):
        self.looks += 1
        return super()._drain_channel(channel, callback, timeout=timeout)


@pytest.fixture
def memory():
    with Connection("memory://localhost/", transport=CountingTransport) as memory:
        WORK(memory.default_channel).declare()
        WORK(memory.default_channel).purge()
        yield memory


def put(memory, body) -> None:
    memory.Producer().publish(body, exchange="", routing_key=WORK.name)


def later(call, *arguments) -> Thread:
    def run() -> None:
        time.sleep(0.2)
        call(*arguments)

    thread = Thread(target=run)
    thread.start()
    return thread


def test_a_message_wakes_whoever_waits_for_it(memory):
    got = []
    with Consumer(memory.channel(), [WORK], callbacks=[lambda body, message: got.append(body)], no_ack=True):
        memory.transport.looks = 0
        sender = later(put, memory, "now")
        memory.drain_events(timeout=20)
        sender.join()

    assert got == ["now"]
    assert memory.transport.looks < 10, "it looked again and again instead of waiting"


def test_whoever_waits_in_vain_is_told_so_in_time(memory):
    with Consumer(memory.channel(), [WORK]), pytest.raises(TimeoutError):
        memory.drain_events(timeout=0.05)


def test_whoever_is_woken_waits_no_longer_and_the_next_one_does(memory):
    """A worker that is to stop looks whether it is to go on: without that it would wait for a message for two seconds."""
    with Consumer(memory.channel(), [WORK]):
        waker = later(broker.wake)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            memory.drain_events(timeout=60)
        assert time.monotonic() - begun < 30
        waker.join()
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            memory.drain_events(timeout=0.2)
        assert time.monotonic() - begun >= 0.2


def test_what_was_over_the_limit_comes_once_there_is_room(memory):
    got = []
    for body in ("first", "second"):
        put(memory, body)
    with Consumer(memory.channel(), [WORK], callbacks=[lambda body, message: got.append((body, message))], prefetch_count=1):
        memory.drain_events(timeout=20)
        with pytest.raises(TimeoutError):
            memory.drain_events(timeout=0.05)
        done = later(got[0][1].ack)
        memory.drain_events(timeout=20)
        done.join()

    assert [body for body, _ in got] == ["first", "second"]


def test_the_timetable_sleeps_until_something_is_due():
    sent = []
    clock = Celery("clock", broker="memory://localhost/", set_as_current=False)
    clock.conf.beat_schedule = {"often": {"task": "nothing", "schedule": timedelta(seconds=0.2)}}
    timetable = Timetable(clock, max_interval=1)
    timetable.apply_entry = lambda entry, producer=None: sent.append(entry.name)
    looks = 0
    while not sent:
        pause = timetable.tick()
        looks += 1
        time.sleep(max(0, pause))

    assert looks <= 4


def as_a_worker_does(task, *arguments):
    """Run it with all that happens around a task in a worker."""
    build_tracer(task.name, task, app=app)("a-task", arguments, {}, {"is_eager": False})


@pytest.mark.django_db(transaction=True)
def test_a_file_stays_open_between_tasks_and_a_pool_gets_its_connection_back():
    as_a_worker_does(heartbeat, "default")
    opened = connection.connection
    as_a_worker_does(heartbeat, "scheduler")

    if connection.vendor == "sqlite":
        assert opened is not None
        assert connection.connection is opened
    else:
        assert connection.connection is None
    assert Progress.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_failed_is_not_kept():
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT nonsense")
    assert connection.connection is not None

    as_a_worker_does(heartbeat, "default")

    assert not connection.errors_occurred
    assert Progress.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_task_that_is_called_within_a_transaction_does_not_end_it():
    with transaction.atomic():
        heartbeat.apply(("default",))
        assert connection.in_atomic_block
        assert connection.connection is not None
    assert Progress.objects.count() == 1
