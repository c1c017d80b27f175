"""The program itself: what needs no Django starts without it, and flags act before settings are read."""

import contextlib
import gc
import os
import re
import subprocess
import sys

import pytest
from django.core.management import get_commands

from gpufleet import __version__, cli
from gpufleet.core.management.commands.seed_demo import Command as SeedDemo
from gpufleet.overview import one_line, ours
from tests.servers import PROJECT, Manage


def test_it_says_its_own_version(capsys):
    assert cli.main(["gpufleet", "--version"]) == 0
    assert capsys.readouterr().out == f"gpufleet {__version__}\n"


@pytest.mark.parametrize(("before", "then"), [(700, 10_000), (200_000, 200_000)])
def test_a_command_is_not_looked_through_for_garbage_while_it_is_read(before, then):
    usual = gc.get_threshold()
    gc.set_threshold(before, 10, 10)
    try:
        cli.main(["gpufleet", "--version"])
        assert gc.get_threshold()[0] == then
    finally:
        gc.set_threshold(*usual)


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


def test_help_that_nobody_reads_to_its_end_is_no_fault():
    reader, writer = os.pipe()
    os.close(reader)
    called = "import sys; from gpufleet.cli import main; sys.exit(main(['gpufleet', '--help']))"
    done = subprocess.run([sys.executable, "-c", called], stdout=writer, stderr=subprocess.PIPE, text=True, cwd=PROJECT, timeout=60, check=False)
    os.close(writer)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["bench", "--help"], ["help"], ["help", "bench"]])
def test_what_needs_no_database_loads_no_django(words):
    code = f"import sys; from gpufleet.cli import main; main({['gpufleet', *words]}); sys.exit('django' in sys.modules)"

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

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Unknown command: frobnicate.\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("typed", "meant"), [("sumbit", "submit"), ("docter", "doctor"), ("migrat", "migrate")])
@pytest.mark.parametrize("before", [[], ["help"]])
def test_a_command_that_is_nearly_one_is_hinted_at(capsys, before, typed, meant):
    assert cli.main(["gpufleet", *before, typed]) == 2
    assert f"Unknown command: {typed}. Did you mean {meant}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"]])
def test_help_names_every_command_of_ours_with_what_it_says_of_itself(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "120")

    assert cli.main(["gpufleet", *words]) == 0

    out = capsys.readouterr().out
    found = re.findall(r"^  (\w+) +(\S.*)$", out, re.MULTILINE)
    lines = dict(found)
    assert len(found) == len(lines), "each is in one group"
    here = {name for name, app in get_commands().items() if str(app).split(".")[0] in ("gpufleet", "scheduler", "quotas", "dashboards")}
    assert set(lines) == here | {name.split()[0] for name in cli.PLAIN_COMMANDS}
    assert lines["ls"] == "List jobs that you may see, the newest first."
    assert lines["seed_demo"] == SeedDemo.help
    assert "manage.py" in out and "sqlflush" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit"], "usage: gpufleet submit"),
        (["plan"], "usage: gpufleet plan"),
        (["bench", "engine"], "usage: gpufleet bench engine"),
        (["schedule", "add"], "usage: gpufleet schedule add"),
        (["doctor"], "Look at the whole installation"),
    ],
)
def test_help_of_one_command_is_its_own(capsys, words, said):
    with contextlib.suppress(SystemExit):
        assert cli.main(["gpufleet", "help", *words]) == 0
    assert said in capsys.readouterr().out


def test_what_a_command_says_of_itself_is_in_its_own_help(capsys):
    """The overview and the help of each have one source."""
    for name in ours():
        if name not in cli.PLAIN_COMMANDS or name == "bench":
            continue
        with pytest.raises(SystemExit):
            cli.main(["gpufleet", name, "--help"])
        assert one_line(name, cli.PLAIN_COMMANDS) in " ".join(capsys.readouterr().out.split())
