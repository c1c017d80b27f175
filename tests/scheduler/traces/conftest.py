"""`gpufleet trace` as a person calls it: files in a folder, a scenario out, and `gpufleet simulate` on that."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.cli import main


class Tracing:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def scenario(self, *arguments: str) -> tuple[dict[str, Any], str]:
        """What is written, and what is said of it."""
        out = self.folder / "scenario.json"
        assert main(["gpufleet", "trace", *arguments, "--out", str(out)]) == 0, self.capsys.readouterr().err
        return json.loads(out.read_text()), self.capsys.readouterr().err

    def refused(self, *arguments: str) -> str:
        """Why nothing is written."""
        out = self.folder / "never.json"
        assert main(["gpufleet", "trace", *arguments, "--out", str(out)]) == 2
        assert not out.exists()
        return self.capsys.readouterr().err

    def played(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """The jobs of the scenario that was written last, as `gpufleet simulate` played them."""
        assert main(["gpufleet", "simulate", str(self.folder / "scenario.json"), "--json", "--per-job", *arguments]) == 0
        return {row["job"]: row for row in json.loads(self.capsys.readouterr().out)["per_job"]}


@pytest.fixture
def tracing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tracing:
    return Tracing(tmp_path, capsys)


@pytest.fixture
def jobs() -> Callable[[dict[str, Any]], dict[str, dict[str, Any]]]:
    return lambda scenario: {job["name"]: job for job in scenario["jobs"]}
