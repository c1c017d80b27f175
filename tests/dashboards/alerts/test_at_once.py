"""A round and a person at the same alert: neither undoes what the other has written."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.servers import Manage, wait_until

SHELL = ("shell", "--verbosity", "0", "-c")
FIRES = """
from dashboards.alerts.models import AlertRule
from dashboards.alerts.round import alerts_round
from scheduler.models import Node
from tests import builders
from tests.builders import NOON
AlertRule.objects.all().delete()
rule = {"figure": "nodes_out", "subject": "*", "threshold": 20, "clear_at": 10, "for_minutes": 0, "escalate_minutes": 10}
AlertRule.objects.create(public_id="ar-1", name="Nodes out", told=["operator"], escalate_to=["superuser"], **rule)
nodes = [builders.node(gpus=1, pool=builders.pool()) for _ in range(4)]
Node.objects.filter(pk=nodes[0].pk).update(health="down")
print(alerts_round(now=NOON).fired)
"""
LATER = """
from datetime import timedelta
from dashboards.alerts.round import alerts_round
from scheduler.models import Node
from tests.builders import NOON
Node.objects.update(health="down")
print(alerts_round(now=NOON + timedelta(minutes=11)).escalated)
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.mark.postgres
def test_who_acknowledges_an_alert_while_a_round_goes_on_is_heard_and_keeps_his_note(tmp_path: Path, migrated_postgres: Callable[[], str]) -> None:
    address = migrated_postgres()
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=address)
    assert manage.run(*SHELL, FIRES).stdout.split() == ["1"]
    with psycopg.connect(address, autocommit=True) as looking, psycopg.connect(address) as person:
        person.execute("UPDATE alert SET acknowledged_at = now(), acknowledged_by = 'Ada', note = 'On it.'")
        turn = manage.start("manage.py", *SHELL, LATER, name="round")
        try:
            wait_until(lambda: looking.execute(WAITING).fetchone() == (1,), seconds=60, what="the round to wait for the person")
            person.commit()
            assert turn.process.wait(60) == 0, turn.output()
        finally:
            turn.kill()
        assert looking.execute("SELECT value, note, escalated_at FROM alert").fetchone() == (100.0, "On it.", None)
    assert turn.output().split() == ["0"]
