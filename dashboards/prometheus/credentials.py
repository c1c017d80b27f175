"""How gpufleet signs in to a Prometheus server. The secret is sealed with the installation's key, so that a copy of the database alone opens nothing.

It is sent to the address that it was given for, and is in no page, answer, log or fault.
"""

import base64
import ipaddress
import unicodedata
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from cryptography.fernet import Fernet, InvalidToken
from django.utils.crypto import salted_hmac

from dashboards.prometheus.models import PrometheusServer, SignIn

SECRET_LENGTH = 4096
WORD_LENGTH = 200
# That of Mimir, Cortex and Loki, and that of Thanos.
TENANT_HEADERS = ("X-Scope-OrgID", "THANOS-TENANT")
NAMES = {SignIn.BASIC: "password", SignIn.BEARER: "token"}


def secret_of(server: PrometheusServer) -> str | None:
    """The password or token; empty where there is none, None where the installation's key does not open it."""
    if not server.sealed:
        return ""
    try:
        return _box(server).decrypt(server.sealed.encode()).decode()
    except InvalidToken:
        return None


def sealed(server: PrometheusServer, secret: str) -> str:
    """For this server alone: copied to another one it opens nothing."""
    return _box(server).encrypt(secret.encode()).decode()


def _box(server: PrometheusServer) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(salted_hmac("gpufleet.prometheus.secret", server.public_id, algorithm="sha256").digest()))


def headers_of(server: PrometheusServer, secret: str) -> dict[str, str]:
    found = dict.fromkeys(TENANT_HEADERS, server.tenant) if server.tenant else {}
    if server.sign_in == SignIn.BASIC:
        found["Authorization"] = f"Basic {base64.b64encode(f'{server.username}:{secret}'.encode()).decode()}"
    elif server.sign_in == SignIn.BEARER:
        found["Authorization"] = f"Bearer {secret}"
    return found


def facts_told(server: PrometheusServer) -> dict[str, Any]:
    """For the audit log, beside the fields: of the secret only a mark, by which it is the same as before or another. Trying marks finds no secret."""
    secret = secret_of(server)
    mark = salted_hmac("gpufleet.prometheus.mark", f"{server.public_id} {secret}", algorithm="sha256").hexdigest()[:8]
    return {"unencrypted": is_unencrypted(server), "secret": f"({mark})" if secret else "unreadable" if secret is None else ""}


def is_unencrypted(server: PrometheusServer) -> bool:
    """Whether others on the way may read its secret."""
    return server.sign_in != SignIn.NONE and _is_plain(server.url)


def _is_plain(url: str) -> bool:
    scheme, host, _ = _origin(url)
    if scheme == "https" or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def _origin(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return "", "", 0


def credentials_take(row: PrometheusServer, values: Mapping[str, Any], *, was: PrometheusServer | None) -> tuple[str | None, dict[str, str]]:
    """The new secret of a server as it is to be, None where the stored one stays; and what is wrong, by field. `was` is the server as stored."""
    row.username, row.tenant = row.username.strip() if row.sign_in == SignIn.BASIC else "", row.tenant.strip()
    secret = str(values.get("secret") or "")
    secret = secret.strip() if row.sign_in == SignIn.BEARER else secret
    stays = was is not None and bool(was.sealed) and not secret and (was.sign_in, _origin(was.url)) == (row.sign_in, _origin(row.url))
    faults = {}
    if row.sign_in not in SignIn.values:
        return None, {"sign_in": f"Choose {', '.join(SignIn.values[:-1])} or {SignIn.values[-1]}."}
    if row.sign_in == SignIn.NONE:
        if secret:
            faults["sign_in"] = "Choose how the password or token is sent."
    elif not stays and (fault := _secret_fault(row, secret, was)):
        faults["secret"] = fault
    if row.sign_in == SignIn.BASIC and (not row.username or ":" in row.username or len(row.username) > WORD_LENGTH or not row.username.isprintable()):
        faults["username"] = f"Enter a user name of at most {WORD_LENGTH} characters, without a colon."
    if len(row.tenant) > WORD_LENGTH or not _is_one_word(row.tenant):
        faults["tenant"] = f"At most {WORD_LENGTH} plain letters, digits and signs, without spaces."
    if is_unencrypted(row) and not values.get("unencrypted", stays):
        faults["unencrypted"] = "Over http:// anybody on the way could read it. Use https://, or tick this box."
    return None if stays else secret, faults


def _secret_fault(row: PrometheusServer, secret: str, was: PrometheusServer | None) -> str:
    name = NAMES[SignIn(row.sign_in)]
    if not secret and was is not None and was.sealed and was.sign_in == row.sign_in:
        return f"Enter the {name} again: the stored one was given for another address."
    if not secret:
        return f"Enter the {name}."
    if len(secret) > SECRET_LENGTH:
        return f"At most {SECRET_LENGTH} characters."
    if row.sign_in == SignIn.BEARER and not _is_one_word(secret):
        return "A token has plain letters, digits and signs, without spaces."
    if any(unicodedata.category(letter).startswith("C") for letter in secret):
        return "It has a character that no password has."
    return ""


def _is_one_word(text: str) -> bool:
    return all("!" <= letter <= "~" for letter in text)
