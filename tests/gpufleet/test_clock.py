"""The UTC switch."""

import pytest

from gpufleet.core.models import User
from tests.personas import person

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(client) -> User:
    user = person("ada")
    client.force_login(user)
    return user


def test_a_script_gets_an_empty_answer_and_the_choice_is_kept(client, ada):
    answer = client.post("/clock", {"utc": "1"}, headers={"X-Requested-With": "fetch"})

    ada.refresh_from_db()
    assert answer.status_code == 204
    assert ada.clock_utc
    assert 'data-clock="utc"' in client.get("/search/").content.decode()


def test_without_scripts_one_is_back_on_the_page(client, ada):
    User.objects.update(clock_utc=True)

    answer = client.post("/clock", {"utc": "0", "next": "/search/?q=dgx"})

    ada.refresh_from_db()
    assert answer["Location"] == "/search/?q=dgx"
    assert not ada.clock_utc


@pytest.mark.parametrize("elsewhere", ["https://evil.example/", "//evil.example", "javascript:alert(1)", ""])
def test_back_never_leads_elsewhere(client, ada, elsewhere):
    assert client.post("/clock", {"utc": "1", "next": elsewhere})["Location"] == "/"


def test_reading_changes_nothing(client, ada):
    assert client.get("/clock").status_code == 405
