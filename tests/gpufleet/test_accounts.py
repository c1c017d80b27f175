"""Signing in and out, and the pages of allauth that this console does not have."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.test import Client, RequestFactory

from gpufleet.accounts import not_offered, urlpatterns
from gpufleet.core.models import Installation, User
from gpufleet.people import AccountAdapter

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def fresh_rate_limits():
    cache.clear()


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada", password=PASSWORD, display_name="Ada Byron")


def sign_in(client: Client, password: str = PASSWORD, **more: str):
    return client.post("/accounts/login/", {"login": "ada", "password": password, **more})


def test_the_right_password_leads_to_the_page_that_was_asked_for(ada):
    client = Client()

    asked = client.get("/search/")
    answer = sign_in(client, next="/search/")

    assert asked["Location"] == "/accounts/login/?next=/search/"
    assert answer["Location"] == "/search/"
    assert "Ada Byron" in client.get("/search/").content.decode()


def test_a_wrong_password_says_so_in_words_and_keeps_the_name(ada):
    html = sign_in(Client(), "wrong").content.decode()

    assert 'value="ada"' in html
    assert 'role="alert"' in html
    assert "wrong" not in html.split("</h1>")[1].split("alert")[0]


def test_guessing_is_slowed_down(ada):
    """After five wrong passwords for one name even the right one has to wait."""
    client = Client()
    for _ in range(5):
        sign_in(client, "wrong")

    answer = sign_in(client)

    assert answer.status_code in (200, 429)
    assert "Too many" in answer.content.decode()


def _tries(names: list[str]) -> int:
    """How many of these tries to sign in, all at the same time from one address, get as far as the password."""
    together = Barrier(len(names), timeout=30)

    def one(name: str) -> bool:
        request = RequestFactory().post("/accounts/login/", REMOTE_ADDR="192.0.2.7")
        together.wait()
        try:
            AccountAdapter(request).pre_authenticate(request, username=name, password="wrong")
        except ValidationError:
            return False
        return True

    with ThreadPoolExecutor(len(names)) as pool:
        return sum(pool.map(one, names))


@pytest.mark.parametrize(("names", "most"), [(["ada"] * 16, 5), ([f"user-{number}" for number in range(30)], 20)], ids=["one name", "one address"])
def test_threads_at_the_same_time_get_no_more_tries_than_one(names: list[str], most: int):
    assert 0 < _tries(names) + _tries(names) <= most


def test_many_other_names_do_not_push_a_count_out():
    first = _tries(["ada"] * 8)
    for number in range(2_000):
        cache.set(f"count-of-{number}", [1.0])

    assert 0 < first + _tries(["ada"] * 8) <= 5


def test_a_page_elsewhere_is_never_the_next_page(ada):
    assert "evil" not in sign_in(Client(), next="https://evil.example/")["Location"]


def test_signing_out_takes_a_deliberate_post(ada):
    client = Client()
    client.force_login(ada)

    assert "Sign out?" in client.get("/accounts/logout/").content.decode()
    client.post("/accounts/logout/")
    assert client.get("/search/").status_code == 302


def test_a_password_is_changed_by_who_knows_the_old_one(ada):
    client = Client()
    client.force_login(ada)
    wanted = {"password1": "a new long enough one", "password2": "a new long enough one"}

    refused = client.post("/accounts/password/change/", {"oldpassword": "wrong", **wanted}).content.decode()
    client.post("/accounts/password/change/", {"oldpassword": PASSWORD, **wanted})

    assert 'id="id_oldpassword_error"' in refused
    ada.refresh_from_db()
    assert ada.check_password("a new long enough one")


@pytest.mark.parametrize("pattern", [pattern for pattern in urlpatterns if getattr(pattern, "callback", None) is not_offered], ids=lambda p: p.name)
def test_what_is_not_offered_is_not_there(pattern, ada):
    client = Client()
    client.force_login(ada)

    assert client.get(f"/accounts/{pattern.pattern}").status_code == 404
    assert client.post(f"/accounts/{pattern.pattern}").status_code == 404


@pytest.mark.parametrize(("demo", "shown"), [("small", True), ("large", True), ("none", False)])
def test_only_a_demo_tells_whom_to_sign_in_as(demo, shown):
    Installation.objects.update_or_create(id=1, defaults={"demo": demo})

    html = Client().get("/accounts/login/").content.decode()

    assert ("gpufleet-demo" in html) is shown
    assert ('value="oona"' in html) is shown
