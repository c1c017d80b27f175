"""The program itself: what needs no Django starts without it, and flags act before settings are read."""

import subprocess
import sys

from gpufleet import __version__, cli
from tests.servers import PROJECT, Manage


def test_it_says_its_own_version(capsys):
    assert cli.main(["gpufleet", "--version"]) == 0
    assert capsys.readouterr().out == f"gpufleet {__version__}\n"


def test_a_plain_command_is_found_by_one_word_or_two(monkeypatch):
    monkeypatch.setattr(cli, "PLAIN_COMMANDS", {"bench": "tests.test_cli:first", "bench engine": "tests.test_cli:second"})

    assert cli.main(["gpufleet", "bench", "--json"]) == 10
    assert cli.main(["gpufleet", "bench", "engine", "--json"]) == 20


def first(arguments: list[str]) -> int:
    assert arguments == ["--json"]
    return 10


def second(arguments: list[str]) -> int:
    assert arguments == ["--json"]
    return 20


def test_what_needs_no_database_loads_no_django():
    code = "import sys; from gpufleet.cli import main; main(['gpufleet', 'bench', '--help']); sys.exit('django' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_the_data_folder_may_be_relative_to_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUFLEET_DATA_DIR", "elsewhere")

    cli._use_data_dir(["--port", "1", "--data-dir=mine"])

    assert cli.os.environ["GPUFLEET_DATA_DIR"] == str(tmp_path / "mine")


def test_commands_that_take_a_data_folder_read_it_before_the_settings():
    folder = PROJECT / "gpufleet/core/management/commands"
    offering = {path.stem for path in folder.glob("*.py") if '"--data-dir"' in path.read_text()}

    assert offering == set(cli.DATA_DIR_COMMANDS)


def test_an_unknown_command_is_said_without_a_traceback(tmp_path):
    done = Manage(tmp_path).run("frobnicate", check=False)

    assert done.returncode == 1
    assert "Unknown command" in done.stderr
    assert "Traceback" not in done.stderr
