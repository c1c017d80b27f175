"""The manual is held to the program: every command, setting and reason has its entry, links lead somewhere, marked samples run."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands

from gpufleet.cli import PLAIN_COMMANDS
from scheduler.backends.slurm.on_node import REFUSALS
from tests.servers import PROJECT

PAGES = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])
LONGEST_LINE = 120
OURS = ("gpufleet", "quotas", "scheduler", "dashboards")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
# A sample that follows this remark is executed as it stands.
SAMPLE = re.compile(r"<!-- executed by the tests -->\n+```(\w+)\n(.*?)```", re.DOTALL)


def relative(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page):
    broken = []
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_lines_are_at_most_120_characters(page):
    """Text alone: rows of tables, code and pictures can't be broken."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "![")) and not line.startswith("    ")]

    assert [line for line in lines if len(line) > LONGEST_LINE and " " in line.strip()] == []


def test_every_page_of_the_manual_is_reached_from_its_index():
    waiting, seen = [PROJECT / "docs/index.md"], set()
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        waiting += [(page.parent / target.partition("#")[0]).resolve() for target in LINK.findall(page.read_text()) if ":" not in target]
    adrs = set((PROJECT / "docs/adr").glob("*.md"))

    assert [relative(page) for page in PAGES if page.is_relative_to(PROJECT / "docs") and page not in seen | adrs] == []


def test_every_command_is_described():
    described = set(re.findall(r"^## gpufleet ([a-z_ ]+)$", (PROJECT / "docs/operate/commands.md").read_text(), re.MULTILINE))
    ours = {name for name, app in get_commands().items() if str(app).split(".")[0] in OURS}
    # `bench` is described by its kinds.
    missing = {name for name in ours | set(PLAIN_COMMANDS) if name not in described and not any(entry.startswith(f"{name} ") for entry in described)}

    assert missing == set()
    assert {entry.split()[0] for entry in described} <= ours | {name.split()[0] for name in PLAIN_COMMANDS}, "described, but there is no such command"


def test_every_reason_is_described():
    if importlib.util.find_spec("scheduler.engine.model.reasons") is None:
        pytest.skip("The engine gives no reasons yet.")
    from scheduler.engine.model.reasons import REASONS, WHY

    described = "\n".join(page.read_text() for page in PAGES)

    assert [code for code in (*REASONS, *WHY) if f"`{code}`" not in described] == []


def test_every_refusal_of_a_node_is_described():
    described = (PROJECT / "docs/reasons.md").read_text().partition("## Why a node refuses")[2]

    assert [code for code, text in REFUSALS.items() if f"- `{code}`: {text}" not in described] == []


def test_architecture_decisions_are_numbered_without_gaps():
    numbers = sorted(int(path.name[:4]) for path in (PROJECT / "docs/adr").glob("*.md"))

    assert numbers == list(range(1, len(numbers) + 1))


def samples() -> list[object]:
    return [
        pytest.param(language, code, id=f"{relative(page)}-{number}")
        for page in PAGES
        for number, (language, code) in enumerate(SAMPLE.findall(page.read_text()), 1)
    ]


@pytest.mark.parametrize(("language", "code"), samples())
def test_marked_samples_run(language, code, prepared, tmp_path):
    manage = prepared.migrated(tmp_path / "data")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "gpufleet").write_text(f'#!/bin/sh\nexec {sys.executable} {PROJECT}/manage.py "$@"\n')
    (bin_folder / "gpufleet").chmod(0o755)
    env = {**manage.env, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    command = {"sh": ["sh", "-e", "-c", code], "python": [sys.executable, str(PROJECT / "manage.py"), "shell", "--verbosity", "0", "-c", code]}[
        language
    ]

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_without_a_broken_link_is_not_luck(tmp_path):
    """The link pattern finds links; a page full of none would pass above."""
    assert LINK.findall("see [this](a.md#b) and [that](https://example.org)") == ["a.md#b", "https://example.org"]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_no_merge_was_left_half_done(page):
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text(), re.MULTILINE)
