"""Secrets in logs: wherever a stream is cut, and in whatever form a secret of several lines is printed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.backends.supervising.logs import Log, Redactor

KEY = "-----BEGIN KEY-----\nMIIEvQIBADAN\nzzzzBgkqhkiG\n-----END KEY-----"


def shown(secrets: list[str], text: str, cuts: list[int]) -> str:
    redactor, found, held = Redactor([one.encode() for one in secrets]), b"", b""
    data, places = text.encode(), sorted({cut % (len(text) + 1) for cut in cuts})
    for begin, end in zip([0, *places], [*places, len(data)], strict=True):
        part, held = redactor.pass_on(held + data[begin:end])
        found += part
    part, held = redactor.pass_on(held, last=True)
    assert held == b""
    return (found + part).decode()


SECRETS = st.lists(st.text("ab\n", min_size=4, max_size=9), min_size=1, max_size=3)


@given(SECRETS, st.text("ab\n-", max_size=40), st.lists(st.integers(0, 100), max_size=5))
def test_no_secret_gets_through_however_the_stream_is_cut(secrets: list[str], text: str, cuts: list[int]) -> None:
    found = shown(secrets, text, cuts)
    assert not [secret for secret in secrets if secret in found]
    assert found == shown(secrets, text, []), "and where it is cut makes no difference"


@given(st.text("xyz\n", max_size=60), st.lists(st.integers(0, 100), max_size=5))
def test_what_is_no_secret_comes_through_whole(text: str, cuts: list[int]) -> None:
    assert shown(["abcdef", KEY], text, cuts) == text


@pytest.mark.parametrize(
    "text", [KEY, KEY.replace("\n", "\r\n"), json.dumps(KEY)[1:-1], KEY.splitlines()[1], f"{KEY.splitlines()[2]}\r\n", repr(KEY)[1:-1]]
)
def test_a_secret_of_several_lines_is_known_in_all_its_forms(text: str) -> None:
    found = shown([KEY], f"it is {text} there", [9, 17, 30])
    assert "[secret]" in found
    assert not [line for line in KEY.splitlines() if line in found]


def test_ranks_that_print_at_once_show_neither_part_of_it(tmp_path: Path) -> None:
    log = Log(tmp_path, segment=10_000, segments=2, secrets=[KEY.encode()])
    text = f"a\n{KEY}\nb\n".encode()
    for place in range(len(text)):
        for source in (0, 1):
            log.feed(source, text[place : place + 1], b"[%d] " % source)
    for source in (0, 1):
        log.drain(source, b"[%d] " % source)
    lines = next(tmp_path.glob("log.*")).read_text().splitlines()
    assert sorted(lines) == sorted(f"[{source}] {line}" for source in (0, 1) for line in ("a", "[secret]", "b"))
