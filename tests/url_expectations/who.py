"""Who gets in, and with which scopes a token does."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.personas import PEOPLE
from tests.url_expectations.world import World

SIGNED_IN = frozenset(PEOPLE) - {"anonymous"}
ANYONE = frozenset(PEOPLE)
NOBODY: frozenset[str] = frozenset()
SUPER = frozenset({"superuser"})
SEES = SIGNED_IN - {"stranger"}
OPERATES = SUPER | {"operator"}
EDITS = SUPER | {"quota_admin"}
MANAGES = SUPER | {"quota_admin", "team_lead"}
AUDITS = SUPER | {"operator", "quota_admin", "finance"}
SUBMITS = SUPER | {"submitter", "team_lead"}
HOOKS = SUPER | {"operator", "quota_admin", "team_lead"}
TEMPLATES = SUPER | {"operator", "quota_admin", "team_lead"}
STEERS = SUPER | {"submitter", "team_lead", "operator"}  # the submitter's own job
POLICIES = SUPER | {"operator", "quota_admin"}
IDLE = SUPER | {"operator", "team_lead"}
ASKS = SUPER | {"team_lead", "quota_admin", "operator"}
COSTS = SUPER | {"team_lead", "quota_admin", "finance"}
PRICES = SUPER | {"finance"}
FLEET = SUPER | {"operator", "finance"}  # a role on the root: they see every subtree

TOKEN_SCOPES = ("read", "submit", "operate", "admin")

ALL_SCOPES = frozenset(TOKEN_SCOPES)
OPERATING = frozenset({"operate"})
WRITING = ALL_SCOPES - {"read"}
HOOKING = frozenset({"operate", "admin"})
STEERING = frozenset({"submit", "operate"})
ADMIN = frozenset({"admin"})
ASKING = frozenset({"submit", "operate", "admin"})


@dataclass(frozen=True)
class Expect:
    method: str
    route: str
    who: frozenset[str]
    at: Callable[[World], dict[str, Any]] = field(default=lambda world: {})
    hidden: frozenset[str] = NOBODY
    data: Callable[[World], dict[str, Any]] = field(default=lambda world: {})
    silent: str = ""
    lands: tuple[int, ...] = (200,)  # what a GET answers to those who get in
    tokens: frozenset[str] = NOBODY  # API: scopes of a superuser's token that get in
    case: str = ""

    @property
    def is_api(self) -> bool:
        return self.route.startswith("api/")

    def __str__(self) -> str:
        return f"{self.method} {self.route}{' ' + self.case if self.case else ''}"
