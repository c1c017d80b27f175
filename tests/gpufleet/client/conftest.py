"""A console that answers over HTTP, and the program run against it."""

import pytest

from gpufleet.cli import main


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
