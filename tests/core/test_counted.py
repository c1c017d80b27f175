"""One is one: no text that people read says “1 GPUs”."""

import re
from pathlib import Path

import pytest

from gpufleet.core.templatetags.shell import gpus_told
from tests.servers import PROJECT

NOUNS = "GPUs|jobs|nodes|workers|seconds|changes|runs|faults|slices"
# What is put in, and then a plural whatever it was: {{ n }} GPUs, {{ n }}</span> <span class="unit">GPUs.
TEMPLATE = re.compile(rf"}}}}(</\w+>)?\s*(<span class=\"unit\">)?(whole |other )?({NOUNS})\b")
PROGRAM = re.compile(rf"gpus\([^(){{}}]*\)}} (\w+ )?({NOUNS})\b")


@pytest.mark.parametrize("kind", ["html", "txt"])
def test_no_page_or_mail_puts_a_plural_behind_whatever_number(kind):
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()[:160]}"
        for path in sorted(Path(PROJECT, "templates").rglob(f"*.{kind}"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if TEMPLATE.search(line)
    ]
    assert found == [], "use plural, gpus_told or gpu_word"


def test_no_text_of_the_console_or_the_client_says_so_of_gpus():
    folders = ("dashboards", "gpufleet/client", "quotas", "scheduler/presenters", "scheduler/selectors", "scheduler/services", "scheduler/views")
    found = [
        f"{path.relative_to(PROJECT)}:{number}"
        for folder in folders
        for path in sorted(Path(PROJECT, folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PROGRAM.search(line)
    ]
    assert found == [], "use gpus_told"


def test_no_reason_of_the_engine_puts_a_plural_behind_whatever_number_of_gpus():
    text = re.compile(r'"[^"]*\} GPUs\b')
    of_files = re.compile(r"bad\.when|raise |shown = |lines \+=")  # told to whoever wrote a scenario
    told = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()[:160]}"
        for path in sorted(Path(PROJECT, "scheduler/engine").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if text.search(line) and not of_files.search(line)
    ]
    assert told == [], "use counted"


@pytest.mark.parametrize(("milli", "told"), [(1000, "1 GPU"), (500, "0.5 GPUs"), (8000, "8 GPUs"), (0, "0 GPUs"), (1_024_000, "1,024 GPUs")])
def test_how_gpus_are_counted_in_a_text(milli, told):
    assert gpus_told(milli) == told
