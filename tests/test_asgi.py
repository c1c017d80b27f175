"""The web server's entry in a process of its own, as the server loads it."""

import json
import subprocess
import sys
from pathlib import Path

from tests.servers import PROJECT, Manage

FIRST_REQUEST = """
import json, sys
from gpufleet.asgi import application
from django.test import Client
before = set(sys.modules)
answer = Client().get("/api/v1/jobs", headers={"Host": "localhost", "X-Forwarded-Proto": "https"})
ours = ("gpufleet", "scheduler", "quotas", "dashboards")
print(json.dumps([answer.status_code, sorted(name for name in set(sys.modules) - before if name.split(".")[0] in ours)]))
"""


def test_the_first_request_finds_everything_loaded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_REQUEST], env=Manage(tmp_path).env, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=120
    )

    assert json.loads(done.stdout.splitlines()[-1]) == [401, []]
