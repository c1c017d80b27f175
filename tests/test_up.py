"""`gpufleet up`, as an operator meets it: its own process, a real port, a real folder."""

import json
import signal
import socket
import sys
import urllib.request

import pytest

from tests.servers import Manage, Program, free_port


class Up:
    """A console started by `gpufleet up` over a folder of its own."""

    def __init__(self, manage: Manage) -> None:
        self.manage = manage
        self.port = free_port()

    def start(self, *extra: str, name: str = "up") -> Program:
        return self.manage.start("manage.py", "up", "--port", str(self.port), *extra, name=name)

    def started(self, *extra: str) -> Program:
        program = self.start(*extra)
        program.wait_for(lambda: "answers at" in program.output(), seconds=180, what="the console to say that it answers")
        return program

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            return response.read()


@pytest.fixture
def up(prepared, tmp_path):
    """A console whose database need not be migrated first."""
    return Up(prepared.migrated(tmp_path / "data"))


@pytest.fixture
def first_up(tmp_path):
    """A console that nobody has started yet."""
    return Up(Manage(tmp_path / "data"))


def test_it_answers_when_it_says_so_and_stops_cleanly(first_up):
    up, program = first_up, first_up.started()

    assert json.loads(up.get("/healthz")) == {"status": "ok"}
    assert program.stop(signal.SIGINT) == 0
    assert f"http://127.0.0.1:{up.port}/" in program.output()
    assert f"gpufleet person create NAME --superuser --data-dir {up.manage.data}" in program.output()
    assert "Traceback" not in program.output()


def test_two_consoles_never_share_a_folder_whose_content_and_not_whose_lock_outlives_a_restart_and_a_kill(up):
    first = up.started()
    refused = up.manage.run("up", "--port", str(free_port()), check=False)

    assert refused.returncode == 1
    assert f"Another console (process {first.pid}) runs on the data folder" in refused.stderr
    assert first.stop(signal.SIGTERM) == 0
    key = (up.manage.data / "secret_key").read_text()

    up.started().kill()
    again = up.started()
    assert again.stop(signal.SIGTERM) == 0

    assert "Traceback" not in again.output()
    assert (up.manage.data / "secret_key").read_text() == key
    assert oct((up.manage.data / "secret_key").stat().st_mode)[-3:] == "600"


def test_a_port_that_is_taken_is_named_before_anything_is_prepared(tmp_path):
    second = Manage(tmp_path / "other")
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]

        refused = second.run("up", "--port", str(port), check=False)

    assert refused.returncode == 1
    assert f"Port {port} on 127.0.0.1 is taken" in refused.stderr
    assert f"--port {port + 1}" in refused.stderr
    assert not (second.data / "gpufleet.sqlite3").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")

    refused = Manage(tmp_path / "file" / "data").run("up", check=False)

    assert refused.returncode == 2
    assert "GPUFLEET_DATA_DIR" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_flag_for_the_folder_wins_over_the_environment(first_up, prepared, tmp_path):
    prepared.migrated(tmp_path / "named")
    program = first_up.started("--data-dir", str(tmp_path / "named"))
    program.stop()

    assert (tmp_path / "named" / "secret_key").exists()
    assert [path.name for path in first_up.manage.data.iterdir()] == ["up.log"]


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        ("from celery import beat; beat.Scheduler.tick = lambda self: 1 / 0", "Celery beat ended unexpectedly"),
        ("from celery.worker import WorkController; WorkController.start = lambda self: None", "The Celery worker did not start"),
    ],
)
def test_a_part_that_dies_takes_the_console_down_with_a_failure(up, breaks, named):
    code = f"{breaks}; import sys; from gpufleet.cli import main; sys.exit(main(['gpufleet', 'up', '--port', '{up.port}']))"
    program = up.manage.start("-c", code, name="broken")

    assert program.process.wait(90) == 1
    assert named in program.output()


def test_a_demo_is_not_served_to_other_machines_unless_allowed(up):
    up.manage.run("shell", "--verbosity", "0", "-c", "from gpufleet.core.models import Installation; Installation.objects.create(demo='small')")

    refused = up.manage.run("up", "--host", "0.0.0.0", "--port", str(up.port), check=False)

    assert refused.returncode == 1
    assert "--allow-demo-passwords" in refused.stderr
    assert up.started("--host", "0.0.0.0", "--allow-demo-passwords").stop() == 0


def test_production_is_started_another_way(tmp_path):
    settings = {
        "GPUFLEET_PROFILE": "production",
        "GPUFLEET_SECRET_KEY": "k" * 50,
        "GPUFLEET_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "GPUFLEET_REDIS_URL": "redis://127.0.0.1:1/0",
        "GPUFLEET_ALLOWED_HOSTS": "localhost",
        "GPUFLEET_PUBLIC_URL": "https://localhost",
    }

    refused = Manage(tmp_path, **settings).run("up", check=False)

    assert refused.returncode == 1
    assert "docs/operate/production.md" in refused.stderr


def test_help_needs_no_settings_and_names_every_option(tmp_path):
    told = Manage(tmp_path).run("up", "--help").stdout

    assert all(option in told for option in ("--port", "--host", "--demo", "--data-dir", "--allow-demo-passwords")), sys.argv
