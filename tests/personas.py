"""People for tests: a small tree, one person per role, a stranger without any, and nobody at all.

`personas.client("viewer")` is a browser in which the viewer is signed in. Roles sit on these nodes:

    acme                    operator, finance
    acme/research           quota_admin
    acme/research/nlp       viewer, submitter, team_lead
    acme/research/vision    nobody: what the team's people must not see
    acme/product/search     nobody
"""

from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.test import Client

from gpufleet.core.ids import public_ids
from gpufleet.core.models import User
from gpufleet.core.sessions import SessionStore
from gpufleet.core.times import now
from quotas.models import NodeKind, QuotaNode, Role, RoleBinding
from quotas.permissions import Access, access_for_user
from quotas.services.tokens import token_create

PLACES = {
    "viewer": (Role.VIEWER, "acme/research/nlp"),
    "submitter": (Role.SUBMITTER, "acme/research/nlp"),
    "team_lead": (Role.TEAM_LEAD, "acme/research/nlp"),
    "quota_admin": (Role.QUOTA_ADMIN, "acme/research"),
    "operator": (Role.OPERATOR, "acme"),
    "finance": (Role.FINANCE, "acme"),
}
PEOPLE = ("anonymous", "stranger", *PLACES, "superuser")
KINDS = (NodeKind.ORG, NodeKind.DEPARTMENT, NodeKind.TEAM, NodeKind.PROJECT)
PASSWORD = "correct horse battery"


def grow(*paths: str) -> dict[str, QuotaNode]:
    """Quota nodes by path; what lies above each is made too."""
    above = [path.split("/") for path in paths]
    wanted = dict.fromkeys("/".join(steps[:end]) for steps in above for end in range(1, len(steps) + 1))
    names = dict(zip(wanted, public_ids("q", len(wanted)), strict=True))
    nodes: dict[str, QuotaNode] = {}
    for depth in range(max(map(len, above))):  # level by level: what lies below needs the keys of what lies above
        level = [path for path in wanted if path.count("/") == depth]
        rows = [
            QuotaNode(
                public_id=names[path],
                parent=nodes.get(path.rpartition("/")[0]),
                name=path.rpartition("/")[2],
                path=path,
                depth=depth,
                kind=KINDS[min(depth, 3)],
            )
            for path in level
        ]
        nodes |= dict(zip(level, QuotaNode.objects.bulk_create(rows), strict=True))
    return {path: nodes[path] for path in wanted}


def person(username: str, *, role: str | None = None, node: QuotaNode | None = None, superuser: bool = False) -> User:
    # The hasher is slow on purpose; tests that sign in with a password set one themselves.
    user = _unsaved(username, superuser=superuser)
    user.save()
    if role and node:
        RoleBinding.objects.create(user=user, role=role, node=node)
    return user


def _unsaved(username: str, *, superuser: bool) -> User:
    return User(username=username, display_name=username.replace("_", " ").title(), is_superuser=superuser)


def let_in(browser: Client, user: User) -> None:
    """The session that signing in leaves, without the rest of it, which takes six times as long and which few tests are about."""
    session = SessionStore()
    session.update(
        {
            SESSION_KEY: str(user.pk),
            BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
            HASH_SESSION_KEY: user.get_session_auth_hash(),
        }
    )
    session.save()
    browser.cookies[settings.SESSION_COOKIE_NAME] = session.session_key or ""


@dataclass
class Personas:
    nodes: dict[str, QuotaNode]
    users: dict[str, User]
    _clients: dict[str, Client] = field(default_factory=dict)

    def client(self, name: str) -> Client:
        """A browser of that person's own; `anonymous` is signed in as nobody."""
        if name not in self._clients:
            browser = Client()
            if name != "anonymous":
                let_in(browser, self.users[name])
            self._clients[name] = browser
        return self._clients[name]

    def afresh(self) -> "Personas":
        """The same people for another test, who are still signed in where they were: what was learned or changed of them since is forgotten."""
        nodes, users = deepcopy((self.nodes, self.users))
        again = Personas(nodes, users)
        for name, browser in self._clients.items():
            again._clients[name] = Client()
            again._clients[name].cookies = deepcopy(browser.cookies)
        return again

    def access(self, name: str) -> Access:
        return access_for_user(self.users[name])

    def token(self, owner: str, *scopes: str, path: str | None = None) -> str:
        """The secret of a fresh token."""
        moment = now()
        new = token_create(
            access=self.access(owner),
            owner=self.users[owner],
            name="test",
            scopes=list(scopes),
            node=self.nodes[path] if path else None,
            expires_at=moment + timedelta(days=1),
            now=moment,
        )
        return new.secret


@pytest.fixture
def personas(db: None) -> Personas:
    return settled()


def settled() -> Personas:
    """Everybody in place, in few statements: every third test asks for it."""
    nodes = grow("acme/research/nlp", "acme/research/vision", "acme/product/search")
    names = [*PLACES, "stranger", "superuser"]
    people = [_unsaved(name, superuser=name == "superuser") for name in names]
    for user, number in zip(people, public_ids("u", len(people)), strict=True):
        user.public_id = number
    users = dict(zip(names, User.objects.bulk_create(people), strict=True))
    RoleBinding.objects.bulk_create(RoleBinding(user=users[name], role=role, node=nodes[path]) for name, (role, path) in PLACES.items())
    return Personas(nodes, users)
