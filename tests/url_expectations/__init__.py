"""Who gets in where: one line for each address and method. `tests/test_url_matrix.py` fails when an address has none.

    Expect("GET", "nodes/<slug:public_id>/", SEES, at=lambda w: {"public_id": w.node.public_id})

The route is written as the URL configuration has it. `who` gets in; of the rest, those in `hidden` are told 404 (the row lies outside their
subtrees), nobody signed in is sent to sign in (the API: 401), and everybody else gets 403. A write states a body that is good (`data`; the API's
is sent as JSON): it must leave an entry in the audit log, unless `silent` says why it writes nothing.
"""

from tests.url_expectations.api import API
from tests.url_expectations.bodies import FIELDS, team
from tests.url_expectations.pages import PAGES
from tests.url_expectations.who import FLEET, SEES, TOKEN_SCOPES, Expect
from tests.url_expectations.world import World

__all__ = ["EXPECTED", "FIELDS", "FLEET", "NOT_THERE", "SOCKETS", "TOKEN_SCOPES", "Expect", "World", "team"]

# Addresses that exist for allauth's sake, or only while single sign-on is configured: 404 for all.
NOT_THERE = (
    "api/v1/",
    "accounts/oidc/<slug:provider_id>/login/",
    "accounts/oidc/<slug:provider_id>/login/callback/",
    "accounts/signup/",
    "accounts/inactive/",
    "accounts/password/set/",
    "accounts/password/reset/",
    "accounts/reauthenticate/",
    "accounts/email/",
    "accounts/3rdparty/",
    "accounts/3rdparty/signup/",
    "accounts/3rdparty/login/cancelled/",
    "accounts/3rdparty/login/error/",
)

EXPECTED = [*PAGES, *API]

# The websocket of all live pages: who stays connected. The rest is told why it closes; each topic asks again for its own capability.
SOCKETS = {"ws/live/": SEES}
