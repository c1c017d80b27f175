"""The navigation: it offers each person the pages that open for them, and no others."""

import re
from pathlib import Path

import pytest

from gpufleet.navigation import PLACES
from tests.personas import PEOPLE

pytestmark = pytest.mark.django_db
ALL = [place for _, places in PLACES for place in places]


def links(html: str) -> dict[str, str]:
    nav = html[html.index('id="places"') :]
    nav = nav[: nav.index("</nav>")]
    return {label.strip(): href for href, label in re.findall(r'<a href="([^"]+)".*?</i>\s*([^<]+?)\s*</a>', nav, re.DOTALL)}


@pytest.mark.parametrize("who", [name for name in PEOPLE if name not in ("anonymous", "stranger")])
def test_every_place_that_is_offered_opens(who, personas):
    client = personas.client(who)

    offered = links(client.get("/search/").content.decode())

    assert {"Overview", "Nodes", "Quotas"} <= offered.keys()
    for label, href in offered.items():
        assert client.get(href).status_code == 200, label


def test_the_superuser_is_offered_everything(personas):
    offered = links(personas.client("superuser").get("/search/").content.decode())

    assert list(offered) == [place.label for place in ALL]


def test_fleet_wide_work_is_offered_to_operators_only(personas):
    assert "Import" in links(personas.client("operator").get("/search/").content.decode())
    assert "Import" not in links(personas.client("team_lead").get("/search/").content.decode())


def test_who_has_no_role_is_told_what_to_do(personas):
    stranger = personas.client("stranger")

    first = stranger.get("/")

    assert first.status_code == 403
    assert "Your admin can grant it" in first.content.decode()
    assert links(stranger.get("/search/").content.decode()) == {}


def test_the_page_one_is_on_is_marked(personas):
    client = personas.client("operator")

    assert re.search(r'href="/nodes/"[^>]*aria-current="page"', client.get("/nodes/").content.decode())
    assert 'aria-current="page"' not in client.get("/search/").content.decode().split("</nav>")[0]


def test_the_manual_knows_every_key():
    manual = (Path(__file__).resolve().parents[2] / "docs/use.md").read_text().lower()

    assert [place.label for place in ALL if f"`{place.key}` {place.label.lower()}" not in manual] == []


def test_keys_and_names_are_given_once():
    keys = [place.key for place in ALL]

    assert len(set(keys)) == len(keys)
    assert not {"g", "j", "k", "?"} & set(keys) - {"g"}
