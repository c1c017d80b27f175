"""Settings: each fault names its variable and what is allowed, all faults at once, and the manual describes every one."""

import os
import re
import subprocess
import sys

import pytest

from gpufleet.environment import VARIABLES, ConfigurationError, read
from tests.servers import PROJECT

PRODUCTION = {
    "GPUFLEET_PROFILE": "production",
    "GPUFLEET_SECRET_KEY": "s" * 50,
    "GPUFLEET_DATABASE_URL": "postgresql://fleet:pass%40word@db:5432/fleet",
    "GPUFLEET_REDIS_URL": "redis://cache:6379/0",
    "GPUFLEET_ALLOWED_HOSTS": "fleet.example.org",
    "GPUFLEET_PUBLIC_URL": "https://fleet.example.org",
}


def faults(**given: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        read(given)
    return raised.value.faults


def test_nothing_needs_to_be_set_to_try_it():
    assert read({})["PROFILE"] == "embedded"


def test_production_states_what_it_needs_all_at_once():
    told = faults(GPUFLEET_PROFILE="production")

    assert [fault.split(":")[0] for fault in told] == sorted(
        (variable.name for variable in VARIABLES if variable.production is None), key=[variable.name for variable in VARIABLES].index
    )
    assert all("must be set in the production profile; allowed: " in fault for fault in told)
    assert read(PRODUCTION)["TLS"] is True


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("GPUFLEET_PROFILE", "prod"),
        ("GPUFLEET_SECRET_KEY", "short"),
        ("GPUFLEET_DATABASE_URL", "mysql://db/fleet"),
        ("GPUFLEET_DATABASE_URL", "postgresql:///"),
        ("GPUFLEET_REDIS_URL", "cache:6379"),
        ("GPUFLEET_PUBLIC_URL", "fleet.example.org"),
        ("GPUFLEET_TLS", "yes"),
        ("GPUFLEET_TRUSTED_PROXIES", "6"),
        ("GPUFLEET_TRUSTED_PROXIES", "one"),
        ("GPUFLEET_LOG_LEVEL", "chatty"),
        ("GPUFLEET_LOG_FORMAT", "xml"),
        ("GPUFLEET_CURRENCY", "usd"),
        ("GPUFLEET_CURRENCY", "DOLLAR"),
        ("GPUFLEET_SESSION_HOURS", "0"),
        ("GPUFLEET_SESSION_HOURS", ""),
        ("GPUFLEET_OIDC_ISSUER", "ldap://directory"),
        ("GPUFLEET_EMAIL_URL", "mail.example.org"),
        ("GPUFLEET_EMAIL_URL", "smtp://console:p%C3%A4ss@mail.example.org"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(name, bad):
    legal = next(variable.legal for variable in VARIABLES if variable.name == name)

    (told,) = faults(**{name: bad})

    assert told.startswith(f"{name}: ")
    assert told.endswith(f"allowed: {legal}")


def test_all_faults_are_told_at_once():
    told = faults(GPUFLEET_TLS="yes", GPUFLEET_SESSION_HOURS="never", GPUFLEET_REDIS_ULR="redis://cache")

    assert [fault.split(":")[0] for fault in told] == ["GPUFLEET_REDIS_ULR", "GPUFLEET_TLS", "GPUFLEET_SESSION_HOURS"]


def test_single_sign_on_is_whole_or_off():
    (told,) = faults(GPUFLEET_OIDC_ISSUER="https://id.example.org", GPUFLEET_OIDC_CLIENT_ID="fleet")

    assert "GPUFLEET_OIDC_CLIENT_SECRET" in told


@pytest.mark.parametrize("name", ["GPUFLEET_SECRET_KEY", "GPUFLEET_DATABASE_URL", "GPUFLEET_REDIS_URL"])
def test_a_secret_is_never_repeated(name):
    (told,) = faults(**{name: "hunter2@://"})

    assert "hunter2" not in told


def test_a_bad_environment_ends_the_program_with_status_2_and_no_traceback():
    env = {**{name: value for name, value in os.environ.items() if not name.startswith("GPUFLEET_")}, "GPUFLEET_TLS": "maybe"}
    env["DJANGO_SETTINGS_MODULE"] = "gpufleet.settings"

    done = subprocess.run([sys.executable, "manage.py", "check"], cwd=PROJECT, env=env, capture_output=True, text=True)

    assert done.returncode == 2
    assert "GPUFLEET_TLS: 'maybe' is not allowed; allowed: on or off" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_manual_has_a_row_for_every_setting_with_its_values_and_defaults():
    rows = re.findall(
        r"^\| `(GPUFLEET_\w+)` \| (.*?) \| (.*?) \| (.*?) \| (.+?) \|$", (PROJECT / "docs/operate/settings.md").read_text(), re.MULTILINE
    )

    def default(value: str | None) -> str:
        return "*must be set*" if value is None else f"`{value}`" if value else "*empty*"

    assert [row[:4] for row in rows] == [
        (variable.name, variable.legal, default(variable.embedded), default(variable.production)) for variable in VARIABLES
    ]
