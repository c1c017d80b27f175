"""A console that answers over HTTP, and the program run against it."""

import urllib.error

import pytest

from gpufleet.cli import main
from gpufleet.client.calls import Console


@pytest.fixture
def run(live_server, personas, monkeypatch, tmp_path, capsys):
    """`run("ls", "--json", who="viewer")` -> (exit status, standard output, standard error)."""
    monkeypatch.setenv("GPUFLEET_CLIENT_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("GPUFLEET_URL", live_server.url)
    monkeypatch.setenv("NO_PROXY", "*")

    def call(*words, who="viewer", scopes=("read",)):
        monkeypatch.setenv("GPUFLEET_TOKEN", personas.token(who, *scopes))
        status = main(["gpufleet", *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


@pytest.fixture
def lose(monkeypatch):
    """`lose(lambda number: number < 3)`: the console did it, and its word is lost for such requests. Returns the paths that were asked for."""
    once = Console._once

    def losing(lost):
        asked = []

        def answer(self, method, path, *words):
            told = once(self, method, path, *words)
            asked.append(path)
            if lost(len(asked)):
                raise urllib.error.URLError("connection reset")
            return told

        monkeypatch.setattr("gpufleet.client.calls.AGAIN_AFTER", (0, 0, 0))
        monkeypatch.setattr(Console, "_once", answer)
        return asked

    return losing
