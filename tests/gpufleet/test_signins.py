"""Coming in and going out: limits, traces, and what a forged or stolen session can't do."""

import io
import os
import subprocess
import sys

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.test import Client, override_settings
from django.urls import reverse

from gpufleet.core.models import AuditEntry, User
from tests.personas import PASSWORD, Personas
from tests.servers import PROJECT

LOGIN = "/accounts/login/"


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_user("ada", password=PASSWORD, display_name="Ada Lund")


def _try(client: Client, username: str, password: str, **meta: str) -> str:
    answer = client.post(LOGIN, {"login": username, "password": password}, **meta)
    return "in" if answer.status_code == 302 else " ".join(answer.context["form"].non_field_errors())


def test_the_refusal_does_not_say_what_was_wrong(ada: User):
    wrong, unknown = _try(Client(), "ada", "wrong"), _try(Client(), "nobody", "wrong")
    User.objects.filter(pk=ada.pk).update(is_active=False)

    assert wrong == unknown == _try(Client(), "ada", "other")


def test_five_wrong_passwords_close_the_account_for_a_while(ada: User):
    for _ in range(5):
        assert "Too many" not in _try(Client(), "ada", "wrong")

    assert "Too many" in _try(Client(), "ada", PASSWORD)


def test_one_address_can_not_try_all_accounts(ada: User):
    said = [_try(Client(), f"guess-{number}", "wrong") for number in range(21)]

    assert ["Too many" in text for text in said] == [False] * 20 + [True]
    assert _try(Client(REMOTE_ADDR="10.0.0.9"), "ada", PASSWORD) == "in"


def test_behind_a_trusted_proxy_the_client_is_counted_and_not_the_proxy(ada: User):
    with override_settings(ALLAUTH_TRUSTED_PROXY_COUNT=1):
        for number in range(21):
            _try(Client(), f"guess-{number}", "wrong", HTTP_X_FORWARDED_FOR="203.0.113.5")

        assert "Too many" in _try(Client(), "ada", PASSWORD, HTTP_X_FORWARDED_FOR="203.0.113.5")
        assert _try(Client(), "ada", PASSWORD, HTTP_X_FORWARDED_FOR="203.0.113.6") == "in"


def test_without_a_trusted_proxy_the_header_is_only_text(ada: User):
    """Else a guesser would write a new address into it with each try."""
    for number in range(21):
        _try(Client(), f"guess-{number}", "wrong", HTTP_X_FORWARDED_FOR=f"203.0.113.{number}")

    assert "Too many" in _try(Client(), "ada", PASSWORD, HTTP_X_FORWARDED_FOR="198.51.100.1")


def test_signing_in_gives_a_new_session(ada: User):
    """A session id that somebody planted before is worth nothing afterwards."""
    browser = Client()
    session = browser.session
    session["planted"] = True
    session.save()
    planted = session.session_key
    browser.cookies[settings.SESSION_COOKIE_NAME] = planted

    assert _try(browser, "ada", PASSWORD) == "in"
    assert browser.session.session_key != planted
    thief = Client()
    thief.cookies[settings.SESSION_COOKIE_NAME] = planted
    assert thief.get("/profile/").status_code == 302


def test_after_signing_in_one_stays_on_this_site(ada: User):
    answer = Client().post(LOGIN + "?next=https://evil.example/", {"login": "ada", "password": PASSWORD, "next": "https://evil.example/"})

    assert answer["Location"] == "/"


def test_a_new_password_ends_the_other_sessions(ada: User):
    here, there = Client(), Client()
    assert _try(here, "ada", PASSWORD) == _try(there, "ada", PASSWORD) == "in"

    answer = here.post(reverse("account_change_password"), {"oldpassword": PASSWORD, "password1": "nine plum trees", "password2": "nine plum trees"})

    assert answer.status_code == 302
    assert here.get("/profile/").status_code == 200
    assert there.get("/profile/").status_code == 302
    assert AuditEntry.objects.filter(action="person.password", actor=ada).exists()


def test_coming_and_going_leaves_a_trace(ada: User):
    browser = Client(REMOTE_ADDR="192.0.2.7")
    _try(browser, "ada", "wrong")
    _try(browser, "ada", PASSWORD)
    browser.post(reverse("account_logout"))

    entries = AuditEntry.objects.order_by("id")
    assert [(entry.action, entry.actor) for entry in entries] == [("sign_in.failed", None), ("sign_in", ada), ("sign_out", ada)]
    assert {entry.after["address"] for entry in entries} == {"192.0.2.7"}
    assert all(entry.request_id for entry in entries)
    assert "wrong" not in str(list(entries.values()))


@pytest.mark.parametrize("statement", ["UPDATE audit_entry SET reason = 'x'", "DELETE FROM audit_entry"])
def test_the_database_refuses_to_rewrite_the_audit(ada: User, statement: str):
    _try(Client(), "ada", PASSWORD)

    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)

    assert AuditEntry.objects.count() == 1


def test_cookies_are_out_of_reach_for_scripts_and_other_sites(ada: User):
    browser = Client()
    browser.get(LOGIN)
    _try(browser, "ada", PASSWORD)

    for name in (settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME):
        assert browser.cookies[name]["httponly"]
        assert browser.cookies[name]["samesite"] == "Lax"


def test_every_answer_carries_the_strict_headers(personas: Personas):
    for path in (LOGIN, "/quotas/", "/api/v1/me", "/nowhere/"):
        answer = personas.client("superuser").get(path)
        policy = answer["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["X-Frame-Options"] == "DENY"
        assert answer["Cross-Origin-Opener-Policy"] == "same-origin"
        assert answer["Referrer-Policy"] == "same-origin"


PRODUCTION = {
    "GPUFLEET_PROFILE": "production",
    "GPUFLEET_SECRET_KEY": "k9Qz7mX2vLp4Rt8Wc1Ybn6Df3Gh5Js0AeUiOxZqVwTyPlMkN",
    "GPUFLEET_DATABASE_URL": "postgresql://gpufleet:secret@localhost/gpufleet",
    "GPUFLEET_REDIS_URL": "redis://localhost/0",
    "GPUFLEET_ALLOWED_HOSTS": "console.example.org",
    "GPUFLEET_PUBLIC_URL": "https://console.example.org",
}


def test_the_production_profile_passes_the_deployment_checks(tmp_path):
    """Nothing is connected to: what is checked is how the settings hang together."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET_") and name != "DJANGO_SETTINGS_MODULE"}
    key = PRODUCTION["GPUFLEET_SECRET_KEY"] + "-more-of-it"
    environment |= PRODUCTION | {"GPUFLEET_SECRET_KEY": key, "GPUFLEET_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]

    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_the_first_superuser_is_made_on_the_machine(db: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("seven green lamps\n"))
    call_command("person", "create", "Root", "--superuser", "--name", "Robin", stdout=io.StringIO())
    monkeypatch.setattr("sys.stdin", io.StringIO("eight green lamps\n"))
    call_command("person", "password", "root", stdout=io.StringIO())

    assert _try(Client(), "root", "eight green lamps") == "in"
    assert [entry.action for entry in AuditEntry.objects.order_by("id")] == ["person.create", "person.password", "sign_in"]


def test_an_empty_console_says_how_the_first_person_is_made(db: None):
    hint = "gpufleet person create NAME --superuser"
    assert hint in Client().get("/accounts/login/").content.decode()

    User.objects.create_user("root")

    assert hint not in Client().get("/accounts/login/").content.decode()


@pytest.mark.parametrize(
    ("arguments", "password", "said"),
    [
        (("create", "ada"), "x", "already"),
        (("create", "a b"), "seven green lamps", "username"),
        (("create", "bea"), "short", "too short"),
        (("password", "nobody"), "seven green lamps", "No person is named nobody"),
    ],
)
def test_the_command_says_what_is_wrong(ada: User, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, str], password: str, said: str):
    monkeypatch.setattr("sys.stdin", io.StringIO(password + "\n"))

    with pytest.raises(CommandError, match=said):
        call_command("person", *arguments)
    assert User.objects.count() == 1


def test_djangos_own_command_works_too(db: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "seven green lamps")
    call_command("createsuperuser", "--noinput", "--username", "root", "--email", "root@example.org", stdout=io.StringIO())

    assert User.objects.get().public_id.startswith("u-")
    assert _try(Client(), "root", "seven green lamps") == "in"
