"""The head of a page has at most three buttons and a menu for the rest, and its red one is the last."""

import re

import pytest

from tests.personas import Personas
from tests.url_expectations import EXPECTED, FIELDS, World

pytestmark = pytest.mark.django_db

HEAD = re.compile(r'<header class="page-head.*?</header>', re.DOTALL)
MENU = re.compile(r'<div class="menu">.*?</div>', re.DOTALL)
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
BUTTON = re.compile(r'<(?:a|button)\b[^>]*?class="(btn[^"]*)"', re.DOTALL)


def test_a_head_has_three_buttons_at_most_and_the_red_one_is_the_last(personas: Personas):
    world, client = World(personas), personas.client("superuser")
    pages = [expect for expect in EXPECTED if (expect.method, expect.is_api) == ("GET", False)]
    addresses = ["/" + PARAMETER.sub(r"{\1}", expect.route).format(**expect.at(world)) for expect in pages]
    addresses += [f"/jobs/{FIELDS[kind](world)['public_id']}/" for kind in ("running job", "draft job", "held job")]
    addresses += [f"/reservations/{world.lasting_reservation.public_id}/", f"/clusters/{world.slurm.name}/"]
    heads = {}
    for address in addresses:
        answer = client.get(address)
        if answer.status_code == 200 and answer["Content-Type"].startswith("text/html"):
            head = HEAD.search(answer.content.decode())
            heads[address] = BUTTON.findall(MENU.sub("", head[0])) if head else []

    assert {address: len(buttons) for address, buttons in heads.items() if len(buttons) > 3} == {}
    assert [address for address, buttons in heads.items() if any("btn-danger" in one for one in buttons[:-1])] == []
    assert sum(bool(buttons) for buttons in heads.values()) > 40, "heads with buttons"
    assert sum("btn-danger" in str(buttons) for buttons in heads.values()) >= 5
