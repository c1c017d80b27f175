"""Single sign-on from end to end: a real provider on the loopback, a real HTTP client as the browser, the whole code flow."""

import copy
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from django.conf import settings
from django.test import Client, override_settings
from django.utils.html import escape
from oidc_provider_mock import User as Claims
from oidc_provider_mock import run_server_in_thread

from gpufleet.core.models import AuditEntry, User
from gpufleet.people import groups_of
from quotas.models import RoleBinding
from quotas.services.roles import role_grant
from tests.builders import NOON
from tests.personas import Personas

# The provider that the tests run is older than the library that it stands on.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:authlib")
SIGN_IN = "/accounts/oidc/sso/login/"
MINA = {"email": "mina@example.org", "email_verified": True, "name": "Mina Sato", "preferred_username": "Mina", "groups": ["ml", "everyone"]}


class Provider:
    """The provider with the people that it knows; `claims` may be changed between two sign-ins."""

    def __init__(self, url: str) -> None:
        self.url = url

    def knows(self, sub: str, **claims: object) -> None:
        httpx.put(f"{self.url}/users/{sub}", json=claims).raise_for_status()

    def sign_in(self, client: Client, sub: str, *, deny: bool = False) -> object:
        """Follow the browser's way: our button, the provider's form, back to our callback."""
        away = client.post(SIGN_IN)
        assert away.status_code == 200, away.content
        address = away.context["redirect_to"]
        assert f'content="0; url={escape(address)}"' in away.content.decode()
        assert address.startswith(self.url)
        assert "code_challenge" in address
        back = httpx.post(address, data={"action": "deny"} if deny else {"sub": sub})
        assert back.status_code in (302, 303), back.text
        callback = urlsplit(back.headers["location"])
        assert callback.path == "/accounts/oidc/sso/login/callback/"
        return client.get(f"{callback.path}?{callback.query}")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with run_server_in_thread(user_claims=[Claims(sub="first")]) as running:
        yield f"http://localhost:{running.server_port}"


@pytest.fixture
def provider(server: str) -> Iterator[Provider]:
    providers = copy.deepcopy(settings.SOCIALACCOUNT_PROVIDERS)
    app = {"provider_id": "sso", "name": "Acme", "client_id": "console", "secret": "s3cret"}
    providers["openid_connect"]["APPS"] = [app | {"settings": {"server_url": server, "scope": ["openid", "profile", "email"]}}]
    with override_settings(SOCIALACCOUNT_PROVIDERS=providers):
        yield Provider(server)


def test_it_is_not_there_until_it_is_configured(personas: Personas):
    assert Client().post(SIGN_IN).status_code == 404
    assert "Acme" not in Client().get("/accounts/login/").content.decode()


def test_a_new_person_comes_in_with_the_roles_of_their_groups(personas: Personas, provider: Provider):
    role_grant(access=personas.access("superuser"), node=personas.nodes["acme/research/nlp"], role="submitter", group="ml", now=NOON)
    provider.knows("mina", **MINA)
    browser = Client()

    assert "Acme" in browser.get("/accounts/login/").content.decode()
    answer = provider.sign_in(browser, "mina")

    assert (answer.status_code, answer["Location"]) == (302, "/")
    user = User.objects.get(username="mina")
    assert (user.display_name, user.email, user.has_usable_password()) == ("Mina Sato", "mina@example.org", False)
    assert list(user.role_bindings.values_list("role", "node__path", "from_sign_on")) == [("submitter", "acme/research/nlp", True)]
    assert browser.get("/quotas/").status_code == 200
    assert AuditEntry.objects.get(action="role.grant", object_id=user.public_id).via == "sign-on"
    assert AuditEntry.objects.filter(action="sign_in", actor=user).exists()


def test_roles_go_with_the_groups(personas: Personas, provider: Provider):
    role_grant(access=personas.access("superuser"), node=personas.nodes["acme/research"], role="viewer", group="ml", now=NOON)
    provider.knows("mina", **MINA)
    provider.sign_in(Client(), "mina")
    provider.knows("mina", **(MINA | {"groups": []}))

    provider.sign_in(Client(), "mina")

    assert User.objects.filter(username="mina").count() == 1
    assert not RoleBinding.objects.filter(user__username="mina").exists()


def test_a_name_or_an_address_opens_nobody_elses_account(personas: Personas, provider: Provider):
    """Local people keep their accounts, however the provider calls its own."""
    boss = personas.users["superuser"]
    boss.email = "boss@example.org"
    boss.set_password("seven green lamps")
    boss.save()
    provider.knows("evil", email="boss@example.org", email_verified=True, preferred_username="superuser", name="Boss")

    browser = Client()
    provider.sign_in(browser, "evil")

    assert browser.get("/api/v1/me").json()["id"] != boss.public_id
    assert browser.get("/api/v1/me").json()["grants"] == []


@pytest.mark.parametrize("verified", [True, False])
def test_a_prepared_account_is_met_by_its_confirmed_address_only(personas: Personas, provider: Provider, verified: bool):
    personas.client("superuser").post("/people/new/", {"username": "m.sato", "display_name": "Mina S", "email": "Mina@example.org"})
    provider.knows("mina", **(MINA | {"email_verified": verified}))

    browser = Client()
    provider.sign_in(browser, "mina")

    assert (browser.get("/api/v1/me").json()["username"] == "m.sato") is verified


def test_a_deactivated_person_stays_out(personas: Personas, provider: Provider):
    provider.knows("mina", **MINA)
    provider.sign_in(Client(), "mina")
    User.objects.filter(username="mina").update(is_active=False)

    browser = Client()
    answer = provider.sign_in(browser, "mina")

    assert answer.status_code == 403
    assert "deactivated" in answer.content.decode()
    assert browser.get("/api/v1/me").status_code == 401


def test_who_turns_back_at_the_provider_is_told_so(personas: Personas, provider: Provider):
    answer = provider.sign_in(Client(), "mina", deny=True)

    assert answer.status_code == 401
    assert "did not work" in answer.content.decode()


def test_a_callback_that_nobody_asked_for_is_refused(personas: Personas, provider: Provider):
    answer = Client().get("/accounts/oidc/sso/login/callback/?code=stolen&state=guessed")

    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("extra", "groups"),
    [
        ({"userinfo": {"groups": ["a", 3, None, "b"]}}, ["a", "b"]),
        ({"userinfo": {"groups": "a"}}, ["a"]),
        ({"userinfo": {}, "id_token": {"groups": ["c"]}}, ["c"]),
        ({"userinfo": {"groups": {"a": 1}}}, []),
        ({}, []),
    ],
)
def test_groups_are_read_whatever_the_provider_sends(extra: dict[str, object], groups: list[str]):
    assert groups_of(extra) == groups
