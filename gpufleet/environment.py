"""Every setting that an operator can make, read once from the environment.

`VARIABLES` is the whole list: `docs/operate/settings.md` describes each row and a test holds the two together. A bad value stops the program with
one line per fault that names the variable and what is allowed.
"""

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PREFIX = "GPUFLEET_"


class ConfigurationError(SystemExit):
    """The environment holds values that gpufleet can't run with. Carries one line per fault, and ends the program with status 2."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("gpufleet can't start with these settings:\n" + "\n".join(f"  {fault}" for fault in faults))


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    legal: str
    parse: Callable[[str], Any]
    embedded: str | None
    production: str | None = None  # None: it must be stated in this profile
    secret: bool = False  # holds a password or key, so a fault does not repeat it


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError
        return text

    return parse


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[text]


def _one(text: str) -> bool:
    return {"1": True, "0": False}[text]


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return parse


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(word) for word in _words(text))


def _mail_url(text: str) -> str:
    if text:
        parts = urlsplit(text)
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.path.strip("/") or parts.port == 0:
            raise ValueError
        if not unquote(f"{parts.username}{parts.password}").isascii():  # Python can't sign in to a mail server with others
            raise ValueError
    return text


def _scopes(text: str) -> tuple[str, ...]:
    scopes = _words(text)
    if "openid" not in scopes:
        raise ValueError
    return scopes


def _url(*schemes: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text:
            parts = urlsplit(text)
            if parts.scheme not in schemes or not (parts.hostname or parts.path.strip("/")):
                raise ValueError
        return text

    return parse


def _urls(text: str) -> tuple[str, ...]:
    return tuple(_url("https", "http")(word) for word in _words(text))


def _uids(text: str) -> tuple[int, int] | None:
    """A range of user ids. Those below 1000 belong to the machine, and the last one of all means nobody."""
    if not text:
        return None
    low, high = (int(part) for part in text.split("-"))
    if not 1000 <= low <= high <= 2**32 - 3:
        raise ValueError
    return low, high


def _node_words(text: str) -> tuple[str, ...]:
    words = _words(text)
    if any(len(word.split(":")) != 2 or not all(word.split(":")) for word in words):
        raise ValueError
    return words


def _secret(text: str) -> str:
    if text and len(text) < 50:
        raise ValueError
    return text


def _currency(text: str) -> str:
    if len(text) != 3 or not text.isascii() or not text.isupper():
        raise ValueError
    return text


VARIABLES = (
    Variable("GPUFLEET_PROFILE", "embedded or production", _choice("embedded", "production"), "embedded", "embedded"),
    Variable("GPUFLEET_DATA_DIR", "a folder that may be written to", Path, "data", "data"),
    Variable("GPUFLEET_SECRET_KEY", "at least 50 random characters", _secret, "", None, secret=True),
    Variable(
        "GPUFLEET_DATABASE_URL",
        "postgresql://user:password@host:port/name, or empty for SQLite in the data folder (embedded only)",
        _url("postgresql", "postgres"),
        "",
        None,
        secret=True,
    ),
    Variable(
        "GPUFLEET_REDIS_URL",
        "redis://host:port/number or rediss://…; empty in the embedded profile",
        _url("redis", "rediss"),
        "",
        None,
        secret=True,
    ),
    Variable("GPUFLEET_ALLOWED_HOSTS", "host names with commas between them", _words, "localhost,127.0.0.1,[::1]", None),
    Variable("GPUFLEET_PUBLIC_URL", "http://… or https://… as people type it, or empty", _url("http", "https"), "", None),
    Variable("GPUFLEET_TLS", "on or off: on when people reach the console over https", _switch, "off", "on"),
    Variable("GPUFLEET_TRUSTED_PROXIES", "0 to 5: how many proxies in front are trusted to name the client", _whole(0, 5), "0", "0"),
    Variable("GPUFLEET_LOG_LEVEL", "debug, info, warning or error", _choice("debug", "info", "warning", "error"), "info", "info"),
    Variable("GPUFLEET_LOG_FORMAT", "text or json", _choice("text", "json"), "text", "json"),
    Variable(
        "GPUFLEET_TRACES_URL",
        "http://… or https://…, such as http://collector:4318/v1/traces, or empty",
        _url("http", "https"),
        "",
        "",
    ),
    Variable("GPUFLEET_CURRENCY", "an ISO 4217 code such as USD or EUR", _currency, "USD", "USD"),
    Variable("GPUFLEET_EXPORT_HOURS", "1 to 168", _whole(1, 168), "24", "24"),
    Variable("GPUFLEET_RATE_APPROVAL", "on or off", _switch, "off", "off"),
    Variable("GPUFLEET_SESSION_HOURS", "1 to 720", _whole(1, 720), "12", "12"),
    Variable("GPUFLEET_API_REQUESTS_PER_MINUTE", "10 to 1000000", _whole(10, 1_000_000), "600", "600"),
    Variable("GPUFLEET_SUBMITS_PER_MINUTE", "0 to 1000000", _whole(0, 1_000_000), "1000", "1000"),
    Variable("GPUFLEET_WAITING_LIMIT", "0 to 1000000", _whole(0, 1_000_000), "20000", "20000"),
    Variable("GPUFLEET_PLACEMENT", "pack, spread or fgd", _choice("pack", "spread", "fgd"), "pack", "pack"),
    Variable("GPUFLEET_MIN_RUNTIME_S", "0 to 86400", _whole(0, 86_400), "300", "300"),
    Variable("GPUFLEET_HYSTERESIS_S", "0 to 86400", _whole(0, 86_400), "300", "300"),
    Variable("GPUFLEET_STALE_GRACE_S", "0 to 86400", _whole(0, 86_400), "60", "60"),
    Variable("GPUFLEET_MAX_MOVES", "0 to 1000", _whole(0, 1000), "4", "4"),
    Variable("GPUFLEET_DEFRAGMENT_ABOVE_PERCENT", "0 to 100", _whole(0, 100), "0", "0"),
    Variable("GPUFLEET_DEFRAGMENT_AFTER_S", "60 to 86400", _whole(60, 86_400), "900", "900"),
    Variable("GPUFLEET_DEFRAGMENT_MOVES_PER_HOUR", "1 to 1000", _whole(1, 1000), "16", "16"),
    Variable("GPUFLEET_USAGE_WEIGHT", "a number from 0 to 100", _number(0, 100), "0", "0"),
    Variable("GPUFLEET_USAGE_HALF_LIFE_S", "3600 to 31536000", _whole(3600, 31_536_000), "604800", "604800"),
    Variable("GPUFLEET_USAGE_STEP_S", "60 to 604800", _whole(60, 604_800), "3600", "3600"),
    Variable("GPUFLEET_BACKFILL_DEPTH", "0 to 1000", _whole(0, 1000), "8", "8"),
    Variable("GPUFLEET_STARTS_PER_S", "1 to 10000", _whole(1, 10_000), "50", "50"),
    Variable("GPUFLEET_START_TIMEOUT_S", "10 to 86400", _whole(10, 86_400), "600", "600"),
    Variable("GPUFLEET_LIMIT_WARNING_S", "0 to 86400", _whole(0, 86_400), "300", "300"),
    Variable("GPUFLEET_READY_BOUND_S", "1 to 86400", _whole(1, 86_400), "600", "600"),
    Variable("GPUFLEET_SCALE_UP_BOUND_S", "1 to 86400", _whole(1, 86_400), "60", "60"),
    Variable("GPUFLEET_DEFER_LEAST_PERCENT", "0 to 100", _whole(0, 100), "5", "5"),
    Variable("GPUFLEET_WEBHOOK_NETWORKS", "networks such as 10.1.0.0/16 with commas between them, or empty", _networks, "", ""),
    Variable("GPUFLEET_WEBHOOK_HTTP", "on or off", _switch, "off", "off"),
    Variable("GPUFLEET_WEBHOOK_GIVE_UP_DAYS", "1 to 60", _whole(1, 60), "5", "5"),
    Variable(
        "GPUFLEET_EMAIL_URL",
        "smtp://user:password@host:587 or smtps://… (user and password in ASCII), or empty: no mail is sent",
        _mail_url,
        "",
        "",
        secret=True,
    ),
    Variable("GPUFLEET_EMAIL_FROM", "the address that mails come from", str, "gpufleet@localhost", "gpufleet@localhost"),
    Variable("GPUFLEET_OIDC_ISSUER", "the provider's issuer URL, or empty: no single sign-on", _url("https", "http"), "", ""),
    Variable("GPUFLEET_OIDC_NAME", "what the sign-in button says", str, "Single sign-on", "Single sign-on"),
    Variable("GPUFLEET_OIDC_CLIENT_ID", "the client id that the provider gave", str, "", ""),
    Variable("GPUFLEET_OIDC_CLIENT_SECRET", "the client secret that the provider gave", str, "", "", secret=True),
    Variable("GPUFLEET_OIDC_SCOPES", "scopes with commas between them, openid among them", _scopes, "openid,profile,email", "openid,profile,email"),
    Variable("GPUFLEET_OIDC_GROUPS_CLAIM", "the claim that lists a person's groups", str, "groups", "groups"),
    Variable("GPUFLEET_LOCAL", "on or off", _switch, "off", "off"),
    Variable("GPUFLEET_LOCAL_USER", "the name of a user of this machine, or empty", str, "", ""),
    Variable("GPUFLEET_LOCAL_UIDS", "two numbers from 1000 on, such as 700000-765535, or empty", _uids, "", ""),
    Variable("GPUFLEET_LOCAL_SAME_USER", "1 or 0", _one, "0", "0"),
    Variable("GPUFLEET_LOCAL_CHECKPOINTS", "a folder, or empty: in the data folder", str, "", ""),
    Variable("GPUFLEET_LOCAL_LOGS_MIB", "1 to 10000000", _whole(1, 10_000_000), "4096", "4096"),
    Variable("GPUFLEET_LOCAL_CGROUP", "a folder of cgroup v2 that the console may write to, or empty", str, "", ""),
    Variable("GPUFLEET_LOCAL_PIN", "on or off", _switch, "off", "off"),
    Variable("GPUFLEET_SLURM_USERS", "names of users with commas between them, or empty", _words, "", ""),
    Variable("GPUFLEET_SLURM_REST_URLS", "URLs of slurmrestd with commas between them, or empty", _urls, "", ""),
    Variable("GPUFLEET_KUBECONFIG", "a kubeconfig whose contexts clusters may use, or empty", str, "", ""),
    Variable("GPUFLEET_VIRTUAL_GPUS", "0 to 64", _whole(0, 64), "0", "0"),
    Variable("GPUFLEET_SECRETS_DIR", "a folder with a folder for each node of the tree, or empty", str, "", ""),
    Variable("GPUFLEET_SECRETS_ENV", "node:NAME of variables with commas between them, such as lab/vision:HUB", _node_words, "", ""),
)


# What the commands of `gpufleet.client` read; a console on the same machine must not stumble over them.
CLIENT_VARIABLES = frozenset({"GPUFLEET_URL", "GPUFLEET_TOKEN", "GPUFLEET_CLIENT_DIR"})


def read(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """All settings by short name (`DATA_DIR`), or a `ConfigurationError` with every fault at once."""
    given = dict(os.environ if environ is None else environ)
    production = given.get("GPUFLEET_PROFILE") == "production"
    known = {variable.name for variable in VARIABLES} | CLIENT_VARIABLES
    faults = [
        f"{name}: there is no such setting; see docs/operate/settings.md" for name in sorted(given) if name.startswith(PREFIX) and name not in known
    ]
    values: dict[str, Any] = {}
    for variable in VARIABLES:
        text = given.get(variable.name, variable.production if production else variable.embedded)
        if text is None or (production and variable.production is None and not text.strip()):
            faults.append(f"{variable.name}: must be set in the production profile; allowed: {variable.legal}")
            continue
        try:
            values[variable.name.removeprefix(PREFIX)] = variable.parse(text.strip())
        except (ValueError, KeyError):
            shown = "the value given" if variable.secret else f"{text!r}"
            faults.append(f"{variable.name}: {shown} is not allowed; allowed: {variable.legal}")
    if values.get("OIDC_ISSUER") and not (values.get("OIDC_CLIENT_ID") and values.get("OIDC_CLIENT_SECRET")):
        faults.append("GPUFLEET_OIDC_CLIENT_ID, GPUFLEET_OIDC_CLIENT_SECRET: both must be set when GPUFLEET_OIDC_ISSUER is")
    if values.get("LOCAL_PIN") and not values.get("LOCAL_CGROUP"):
        faults.append("GPUFLEET_LOCAL_CGROUP: must be set when GPUFLEET_LOCAL_PIN is on")
    if faults:
        raise ConfigurationError(faults)
    return values
