"""Static files as browsers get them."""

import asyncio
import gzip
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders

from gpufleet.core import assets
from gpufleet.core.assets import StaticServer, hashed_name, plain_name

PROJECT = Path(__file__).resolve().parents[2]


class Answer:
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        start, *rest = messages
        self.status: int = start["status"]
        self.headers = {key.decode(): value.decode() for key, value in start["headers"]}
        self.body = b"".join(message["body"] for message in rest)


async def passed_on(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"Django"})


async def ask(server: StaticServer, path: str, *, method: str = "GET", **headers: str) -> Answer:
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message) -> None:
        messages.append(message)

    raw = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
    await server({"type": "http", "method": method, "path": path, "headers": raw}, receive, send)
    return Answer(messages)


@pytest.fixture
def server() -> StaticServer:
    return StaticServer(passed_on)


@pytest.fixture
def folder(tmp_path, settings):
    """A static folder of its own, to change files in."""
    settings.STATICFILES_DIRS = [tmp_path]
    finders.get_finder.cache_clear()
    yield tmp_path
    finders.get_finder.cache_clear()


async def test_a_hashed_name_is_packed_and_kept_for_ever(server):
    answer = await ask(server, f"/static/{hashed_name('css/base.css')}", accept_encoding="br, gzip")

    assert answer.status == 200
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert gzip.decompress(answer.body) == (PROJECT / "static/css/base.css").read_bytes()
    assert int(answer.headers["content-length"]) == len(answer.body)


@pytest.mark.parametrize("accepted", ["", "identity", "gzip;q=0, identity", "br"])
async def test_who_cannot_unpack_gets_it_plain(server, accepted):
    answer = await ask(server, f"/static/{hashed_name('css/base.css')}", accept_encoding=accepted)

    assert "content-encoding" not in answer.headers
    assert answer.body == (PROJECT / "static/css/base.css").read_bytes()


async def test_a_name_without_its_hash_is_asked_for_each_time(server):
    first = await ask(server, "/static/css/base.css")
    again = await ask(server, "/static/css/base.css", if_none_match=first.headers["etag"])

    assert first.headers["cache-control"] == "no-cache"
    assert again.status == 304
    assert again.body == b""
    assert "content-length" not in again.headers


async def test_the_packed_and_the_plain_form_have_different_etags(server):
    path = f"/static/{hashed_name('css/base.css')}"

    packed, plain = await ask(server, path, accept_encoding="gzip"), await ask(server, path)
    crossed = await ask(server, path, accept_encoding="gzip", if_none_match=plain.headers["etag"])

    assert packed.headers["etag"] != plain.headers["etag"]
    assert crossed.status == 200


async def test_head_says_all_and_sends_nothing(server):
    answer = await ask(server, "/static/robots.txt", method="HEAD")

    assert answer.status == 200
    assert answer.body == b""
    assert int(answer.headers["content-length"]) == (PROJECT / "static/robots.txt").stat().st_size


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_files_are_only_read(server, method):
    answer = await ask(server, "/static/css/base.css", method=method)

    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "name",
    [
        "../manage.py",
        "css/../../manage.py",
        "/etc/passwd",
        "//etc/passwd",
        "..\\manage.py",
        "css/base.css\x00.js",
        "css",
        "css/",
        "",
        ".",
        "nothing.css",
        "vendor/widgetbundle.js",
        "vendor/../../manage.py",
        "x" * 5000,
    ],
)
async def test_nothing_but_the_finders_files_is_there(server, name):
    answer = await ask(server, f"/static/{name}")

    assert answer.status == 404
    assert b"root:" not in answer.body


async def test_everything_else_goes_to_django(server):
    assert (await ask(server, "/nodes/")).status == 299
    assert (await ask(server, "/staticky")).status == 299


async def test_what_browsers_ask_for_by_themselves_is_there(server):
    icon, robots = await ask(server, "/favicon.ico"), await ask(server, "/robots.txt")

    assert (icon.status, icon.headers["content-type"]) == (200, "image/svg+xml")
    assert robots.status == 200


async def test_a_chart_costs_at_most_400_kilobytes(server):
    answer = await ask(server, f"/static/{hashed_name('vendor/plotly/plotly.min.js')}", accept_encoding="gzip")

    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert len(answer.body) < 400_000


async def test_the_first_page_has_the_large_script_packed_before_it_is_asked_for(server):
    await ask(server, "/accounts/login/")
    async with asyncio.timeout(20):
        while server._shelf.at_hand("vendor/plotly/plotly.min.js", hashed_name("vendor/plotly/plotly.min.js").split(".")[-2]) is None:
            await asyncio.sleep(0.05)


async def test_a_changed_file_is_served_anew_and_its_old_name_is_not_kept(server, folder):
    file = folder / "page.js"
    file.write_text("old();")
    old = hashed_name("page.js")
    await ask(server, f"/static/{old}")
    file.write_text("new();")

    fresh = await ask(server, f"/static/{hashed_name('page.js')}")
    late = await ask(server, f"/static/{old}")

    assert hashed_name("page.js") != old
    assert (fresh.body, fresh.headers["cache-control"]) == (b"new();", "public, max-age=31536000, immutable")
    assert (late.body, late.headers["cache-control"]) == (b"new();", "no-cache")


async def test_a_crowd_packs_a_file_once(server, folder, monkeypatch):
    (folder / "big.js").write_text("x = 1;\n" * 50_000)
    reads: list[Path] = []
    real = assets._read
    monkeypatch.setattr(assets, "_read", lambda path: reads.append(path) or real(path))

    answers = await asyncio.gather(*(ask(server, "/static/big.js", accept_encoding="gzip") for _ in range(30)))

    assert len(reads) == 1
    assert {len(answer.body) for answer in answers} == {len(answers[0].body)}


def test_names_and_digests_part_cleanly():
    digest = hashlib.sha256(b"").hexdigest()[:12]

    assert plain_name(f"js/live.{digest}.js") == ("js/live.js", digest)
    assert plain_name("js/htmx-2.min.js") == ("js/htmx-2.min.js", "")
    assert plain_name("robots.txt") == ("robots.txt", "")


def test_a_template_that_names_no_file_fails_at_once():
    with pytest.raises(FileNotFoundError, match=r"no static file 'js/nix\.js'"):
        hashed_name("js/nix.js")


def test_the_shell_is_small():
    """What every page loads: the budget of issue 2 is 150 kB of script and 90 kB of style."""

    def packed(*names: str) -> int:
        return sum(len(gzip.compress((PROJECT / "static" / name).read_bytes(), 9)) for name in names)

    assert packed("js/theme.js", "js/shell.js", "js/finder.js") < 15_000
    assert packed("css/tokens.css", "css/base.css", "css/icons.css") < 15_000


def test_fonts_are_named_with_the_digest_of_their_content():
    """A style sheet cannot ask for a hashed name, so it carries it; a font that is replaced must be named anew."""
    named = re.findall(r'url\("\.\./(fonts/[^"]+)"\)', (PROJECT / "static/css/fonts.css").read_text())

    assert len(named) == 4
    assert [name for name in named if name != hashed_name(plain_name(name)[0])] == []
