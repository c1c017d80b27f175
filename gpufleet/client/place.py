"""Which console is meant, and with which token: the environment first, then what `gpufleet login` kept."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpufleet.client import NOT_ALLOWED, USAGE, ClientError

URL, TOKEN, FOLDER = "GPUFLEET_URL", "GPUFLEET_TOKEN", "GPUFLEET_CLIENT_DIR"


@dataclass(frozen=True, slots=True)
class Place:
    url: str
    token: str


def kept_at(environ: Mapping[str, str] = os.environ) -> Path:
    """The file in which a sign-in is kept."""
    if environ.get(FOLDER):
        return Path(environ[FOLDER]) / "client.json"
    base = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "gpufleet" / "client.json"


def place_now(environ: Mapping[str, str] = os.environ) -> Place:
    kept = _kept(environ)
    url, token = environ.get(URL) or kept.get("url", ""), environ.get(TOKEN, "")
    # A token belongs to the console that it was made on; it is never sent to another one.
    if not token and kept.get("url") == clean_url(url or ""):
        token = kept.get("token", "")
    if not url:
        raise ClientError(NOT_ALLOWED, f"Which console? Run gpufleet login URL, or set {URL} and {TOKEN}.")
    if not token:
        raise ClientError(NOT_ALLOWED, f"No token for {url}. Run gpufleet login {url}, or set {TOKEN}.")
    return Place(clean_url(url), token)


def _kept(environ: Mapping[str, str]) -> dict[str, str]:
    try:
        read = json.loads(kept_at(environ).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        raise ClientError(USAGE, f"{kept_at(environ)} can't be read: {fault}. Run gpufleet login again.") from fault
    return read if isinstance(read, dict) else {}


def clean_url(url: str) -> str:
    parts = urlsplit(url.strip())
    if url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ClientError(USAGE, f"{url!r} is not the address of a console; it looks like https://console.example.org.")
    return url.strip().rstrip("/")


def keep(place: Place, environ: Mapping[str, str] = os.environ) -> Path:
    """Write the sign-in down where only this user may read it."""
    path = kept_at(environ)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump({"url": place.url, "token": place.token}, file)
    fresh.replace(path)
    return path
