"""The navigation: it offers each person the pages that open for them, and no others."""

import re
from pathlib import Path

import pytest
from django.urls import reverse

from gpufleet.navigation import SECTIONS
from tests.personas import PEOPLE

pytestmark = pytest.mark.django_db
ALL = [place for section in SECTIONS for place in section.places]


def links(html: str) -> dict[str, str]:
    nav = html[html.index('id="places"') :]
    nav = nav[: nav.index("</nav>")]
    return {label.strip(): href for href, label in re.findall(r'<a href="([^"]+)"\s+data-place.*?</i>\s*([^<]+?)\s*</a>', nav, re.DOTALL)}


@pytest.mark.parametrize("who", [name for name in PEOPLE if name not in ("anonymous", "stranger")])
def test_every_place_that_is_offered_opens(who, personas):
    client = personas.client(who)

    offered = links(client.get("/search/").content.decode())

    assert {"Home", "Nodes", "Quotas"} <= offered.keys()
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
    told = first.content.decode()
    assert "You have no role yet" in told and "A team lead or an operator grants you one." in told
    assert f'<a class="btn" href="{reverse("profile")}">Your profile</a>' in told, "Home would answer the same"
    refused = personas.client("viewer").get("/inventory/import/").content.decode()
    assert "Your admin can grant it" in refused and "Go to Home" in refused
    assert links(stranger.get("/search/").content.decode()) == {}


def test_the_page_one_is_on_is_marked(personas):
    client = personas.client("operator")

    assert re.search(r'href="/nodes/"[^>]*aria-current="page"', client.get("/nodes/").content.decode())
    assert 'aria-current="page"' not in client.get("/search/").content.decode().split("</nav>")[0]


def test_only_the_current_section_is_open(personas):
    html = personas.client("operator").get("/nodes/").content.decode().split("</nav>")[0]

    assert html.count('class="is-here"') == 1
    assert re.search(r'class="is-here">\s*<a class="section" href="/fleet/">.*?</i>Fleet</a>', html, re.DOTALL)


def test_a_section_without_pages_is_hidden_and_one_opens_at_its_first_page(personas):
    def sections(who: str) -> dict[str, str]:
        html = personas.client(who).get("/search/").content.decode().split("</nav>")[0]
        return {label: href for href, label in re.findall(r'<a class="section" href="([^"]+)">.*?</i>([^<]+)</a>', html)}

    assert sections("superuser")["Settings"] == "/people/"
    assert sections("viewer")["Settings"] == "/tokens/"
    assert all(section.label not in sections("superuser") for section in SECTIONS if not section.places)


def test_the_manual_knows_every_key():
    manual = (Path(__file__).resolve().parents[2] / "docs/use.md").read_text().lower()

    assert [place.label for place in ALL if place.key and f"`{place.key}` {place.label.lower()}" not in manual] == []


def test_keys_and_names_are_given_once():
    keys = [place.key for place in ALL if place.key]

    assert len(set(keys)) == len(keys)
    assert not {"g", "j", "k", "?"} & set(keys) - {"g"}
