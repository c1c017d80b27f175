"""Words in the names of jobs are found through an index where PostgreSQL may have one, and without it where it may not."""

import json

import psycopg
import pytest
from psycopg import sql

from gpufleet.doctor import database as checks
from tests.servers import Manage

pytestmark = pytest.mark.postgres

LOOK = """
import json
from django.db import connection
from django.db.models import Q
from gpufleet.core.filters import search_condition
from gpufleet.core.models import User
from gpufleet.doctor import database
from quotas.models import QuotaNode
from scheduler.models import Job

quota, _ = QuotaNode.objects.get_or_create(public_id="q-1", name="org", path="org", depth=0, kind="org")
for number, name in enumerate(("serve-embed-1", "Embed 100% SERVED", "train_embed", "s_rve-embed")):
    Job.objects.get_or_create(public_id=f"j-{number}", defaults={"name": name, "quota": quota, "job_class": "batch"})
found = Job.objects.filter(search_condition("serve EMBED", ("name", "public_id")))
with connection.cursor() as cursor:
    cursor.execute("SET enable_seqscan = off")
    plan = found.order_by().explain()
    cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'job_words'")
    options = cursor.fetchone()
print(json.dumps({
    "names": sorted(found.values_list("name", flat=True)),
    "wild": list(Job.objects.filter(search_condition("00% s", ("name",))).values_list("name", flat=True)),
    "by_id": list(Job.objects.filter(search_condition("J-2", ("name", "public_id"))).values_list("name", flat=True)),
    "by_index": "job_words" in plan,
    "options": options and options[0],
    "told": [finding.do for finding in database.words_indexed() if finding.note],
    "wrong": len([finding for database.MANY_JOBS in (4, 5) for finding in database.words_indexed() if not finding.note]),
}))
"""


def look(manage: Manage):
    return json.loads(manage.run("shell", "--verbosity", "0", "-c", LOOK).stdout.strip().splitlines()[-1])


FOUND = {"names": ["Embed 100% SERVED", "serve-embed-1"], "wild": ["Embed 100% SERVED"], "by_id": ["train_embed"]}


def test_the_index_is_there_and_serves_the_search(tmp_path, migrated_postgres):
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=migrated_postgres())

    assert look(manage) == FOUND | {"by_index": True, "options": ["fastupdate=off"], "told": [], "wrong": 0}


def test_a_role_that_may_create_no_extension_searches_without_and_the_doctor_says_how_to_get_it(tmp_path, postgres):
    url = postgres.create_database()
    name = url.rsplit("/", 1)[1]
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(f"small_{name}")))
        administrator.execute(sql.SQL("GRANT CREATE, USAGE ON SCHEMA public TO {}").format(sql.Identifier(f"small_{name}")))
        manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=url.replace("gpufleet@", f"small_{name}@"))

        told = manage.run("migrate", "--verbosity", "0")

        assert "go without an index" in told.stdout + told.stderr
        without = look(manage)
        (advice,) = without.pop("told")  # with so few jobs it is worth knowing, and nothing more
        assert without == FOUND | {"by_index": False, "options": None, "wrong": 1}
        for statement in (checks.WORDS_EXTENSION, checks.WORDS_INDEX):
            assert f"{statement};" in advice
            administrator.execute(statement)
        administrator.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'job_words'::regclass")  # as an interruption leaves it
        (advice,) = look(manage)["told"]
        assert f"{checks.WORDS_BROKEN}; {checks.WORDS_INDEX};" in advice
        for statement in (checks.WORDS_BROKEN, checks.WORDS_INDEX):
            administrator.execute(statement)
    assert look(manage) == FOUND | {"by_index": True, "options": ["fastupdate=off"], "told": [], "wrong": 0}
