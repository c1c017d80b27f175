"""Error pages: in the shell where there is one, and without asking anything of what may be broken."""

import pytest
from django.test import RequestFactory

from gpufleet import errors
from tests.personas import person

pytestmark = pytest.mark.django_db


@pytest.fixture
def signed_in(client):
    client.force_login(person("ada"))
    return client


def test_a_wrong_address_keeps_the_shell_for_who_is_signed_in(signed_in):
    answer = signed_in.get("/nowhere/")

    html = answer.content.decode()
    assert answer.status_code == 404
    assert 'id="places"' in html
    assert answer["X-Request-Id"] in html


def test_a_stranger_sees_no_shell(client):
    html = client.get("/nowhere/").content.decode()

    assert 'id="places"' not in html
    assert "There is nothing here" in html


def test_the_page_for_what_broke_asks_nothing_of_the_database(django_assert_num_queries):
    """The database may be what broke: even looking up who is signed in would break the error page too."""
    request = RequestFactory().get("/nodes/")

    with django_assert_num_queries(0):
        answer = errors.server_error(request)

    assert answer.status_code == 500
    assert "Something broke on our side" in answer.content.decode()


def test_an_exception_shows_no_trace_of_itself(signed_in, monkeypatch):
    def broken(*arguments, **named):
        raise RuntimeError("secret detail of the inside")

    monkeypatch.setattr("gpufleet.search.find", broken)
    signed_in.raise_request_exception = False

    answer = signed_in.get("/search/", {"q": "node"})

    assert answer.status_code == 500
    assert "secret detail" not in answer.content.decode()
    assert "Traceback" not in answer.content.decode()


def test_programs_get_a_problem_document(signed_in):
    answer = signed_in.get("/nowhere/", headers={"accept": "application/json"})

    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == 404
