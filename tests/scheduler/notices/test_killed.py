"""A worker that is killed for good (SIGKILL) with a message just sent: it arrives again under the same id, and is never lost."""

import json
import signal

import pytest

from tests.receiver import LOOPBACK, receiving
from tests.servers import Manage

MAKE = """
from gpufleet.core.times import now
from scheduler.models import Delivery
from tests import builders
hook = builders.webhook(url=%r)
for number in range(3):
    builders.delivery(hook, state="waiting", status=None, attempts=0, done_at=None, made_at=now(), due_at=now())
"""
# The receiver has answered; what it answered is not written down yet.
SENT = """
import random, time
from gpufleet.core.times import now
from scheduler.notify.outgoing import post
from scheduler.services.notify.delivering import deliveries_turn

def send(*given):
    outcome = post(*given)
    assert outcome.taken, outcome
    print("taken", flush=True)
    time.sleep(600)

deliveries_turn(clock=now, rng=random.Random(1), send=send)
"""
LATER = """
import json, random
from gpufleet.core.times import now
from scheduler.models import Delivery
from scheduler.services.notify.delivering import CLAIM, deliveries_turn
tried = [deliveries_turn(clock=lambda: now() + wait, rng=random.Random(1)) for wait in (CLAIM / 3, CLAIM, CLAIM)]
print(json.dumps({"tried": tried, "rows": list(Delivery.objects.order_by("id").values_list("public_id", "state", "attempts"))}))
"""


@pytest.mark.postgres
def test_a_worker_killed_between_sending_and_marking_sends_again_under_the_same_id(tmp_path, migrated_postgres):
    settings = {"GPUFLEET_WEBHOOK_NETWORKS": LOOPBACK, "GPUFLEET_WEBHOOK_HTTP": "on"}
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=migrated_postgres(), **settings)
    with receiving() as receiver:
        manage.run("shell", "--verbosity", "0", "-c", MAKE % receiver.url)
        worker = manage.start("manage.py", "shell", "--verbosity", "0", "-c", SENT, name="worker")
        worker.wait_for(lambda: worker.output().count("taken") == 3, what="three messages to be taken")

        worker.kill()

        assert worker.process.returncode == -signal.SIGKILL
        told = json.loads(manage.run("shell", "--verbosity", "0", "-c", LATER).stdout.strip().splitlines()[-1])
    assert told["tried"] == [0, 3, 0], "not while the claim holds; then each once more, and never again"
    assert [row[1:] for row in told["rows"]] == [["delivered", 2]] * 3
    ids = [row[0] for row in told["rows"]]
    assert sorted(receiver.ids) == sorted(ids * 2)
    # By these a receiver tells a repeat from another message: the same id and the same words.
    for name in ids:
        first, second = [(headers, body) for headers, body in receiver.calls if headers["Gpufleet-Delivery"] == name]
        assert (first[0]["Gpufleet-Attempt"], second[0]["Gpufleet-Attempt"]) == ("1", "2")
        assert (first[0]["Gpufleet-Event-Id"], first[1]) == (second[0]["Gpufleet-Event-Id"], second[1])
