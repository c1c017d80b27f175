"""What writes to the database, on PostgreSQL as well: the same tests as on SQLite, in a run of their own over tables that are made already.

Tests that ask for no database are left out, as they are the same there, and so are those that only tell what a row says or what a trace is sent.
Of what is drawn there are fewer examples: another one is other input for our code, and seldom another statement for the database.
"""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.servers import PROJECT

pytestmark = [pytest.mark.soak, pytest.mark.postgres]
PARTS = {
    "loop": ["tests/scheduler/loop", *(f"--ignore=tests/scheduler/loop/test_{name}.py" for name in ("one_foresight", "traces"))],
    "jobs": [
        *(f"tests/scheduler/test_bulk_{name}.py" for name in ("pages", "previews", "verdicts")),
        "tests/scheduler/test_planned_changes.py",
        "tests/scheduler/test_submitting_api.py",
        "tests/scheduler/test_submission_limits.py",
        "tests/scheduler/test_saved_views.py",
        "tests/scheduler/schedules",
        "tests/scheduler/test_job_api.py",
        "tests/scheduler/notices",
        "tests/dashboards/slo/test_relief.py",
    ],
    "quotas": [
        "tests/quotas",
        "tests/core/live",
        *(f"tests/core/test_{name}.py" for name in ("bulk", "keyset", "moment", "prepared", "tables")),
    ],
}


@pytest.mark.parametrize("part", PARTS)
def test_the_same_tests_pass_on_postgresql(migrated_postgres: Callable[[], str], part: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.only_database",
        "--reuse-db",
        "-m",
        "not soak and not postgres and not redis",
        *PARTS[part],
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"TEST_DATABASE_URL": migrated_postgres(), "TEST_DATABASE_IS_MADE": "yes", "HYPOTHESIS_PROFILE": "few"}
    done = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:]
