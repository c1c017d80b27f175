"""What surrounds every page: the navigation that this person may use, and facts that the shell shows."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from gpufleet.core.models import Installation, User
from quotas.permissions import Access, Can, access_for_user


def access_of(request: HttpRequest) -> Access:
    """The signed-in person's access, asked for once a request."""
    access: Access | None = getattr(request, "access", None)
    if access is None:
        access = access_for_user(request.user, request_id=getattr(request, "request_id", ""))  # type: ignore[arg-type]
        request.access = access  # type: ignore[attr-defined]
    return access


@dataclass(frozen=True, slots=True)
class Place:
    """A page that the navigation leads to, who is led there, and the key that goes there after a `g`."""

    label: str
    url_name: str
    icon: str
    key: str = ""
    needs: Can = Can.SEE
    everywhere: bool = False
    or_needs: Can | None = None

    def is_open_to(self, access: Access) -> bool:
        if self.or_needs is not None and access.can_somewhere(self.or_needs):
            return True
        return access.can_everywhere(self.needs) if self.everywhere else access.can_somewhere(self.needs)


@dataclass(frozen=True, slots=True)
class Link:
    """A place as one page shows it. `current` is what `aria-current` says: `page` on it, `true` on a page below it, else empty."""

    label: str
    url: str
    icon: str
    key: str
    current: str


PLACES: tuple[tuple[str, tuple[Place, ...]], ...] = (
    (
        "Fleet",
        (
            Place("Overview", "overview", "gauge", "o"),
            Place("Fleet map", "fleet", "map", "m"),
            Place("Clusters", "clusters", "cluster", "c"),
            Place("Nodes", "nodes", "node", "n"),
            Place("GPUs", "gpus", "chip", "g"),
        ),
    ),
    (
        "Work",
        (
            Place("Jobs", "jobs", "job", "w"),
            Place("Queue", "queue", "sort", "l"),
            Place("Submit", "job_new", "plus", "u", needs=Can.SUBMIT),
            Place("Schedules", "schedules", "refresh", "r"),
            Place("Scheduler", "scheduler", "clock", "s", everywhere=True),
        ),
    ),
    ("Sharing", (Place("Quotas", "quotas", "tree", "q"),)),
    (
        "Administration",
        (
            Place("People", "people", "people", "p", needs=Can.MANAGE_PEOPLE),
            Place("Tokens", "tokens", "key", "t"),
            Place("Webhooks", "webhooks", "link", "h", needs=Can.MANAGE_PEOPLE, or_needs=Can.OPERATE),
            Place("Audit log", "audit", "scroll", "a", needs=Can.SEE_AUDIT),
            Place("Import", "inventory_import", "upload", "i", needs=Can.OPERATE, everywhere=True),
            Place("Discovery", "inventory_discover", "radar", "d", needs=Can.OPERATE, everywhere=True),
        ),
    ),
)


def _current(url: str, path: str) -> str:
    if path == url:
        return "page"
    return "true" if url != "/" and path.startswith(url) else ""


def navigation(request: HttpRequest) -> list[tuple[str, list[Link]]]:
    """The groups of places that this person may use. A person without any role has none."""
    access = access_of(request)
    groups = []
    # Of two places that a page lies below only the nearer one is where it is.
    here = max(
        (reverse(place.url_name) for _, places in PLACES for place in places if _current(reverse(place.url_name), request.path)), key=len, default=""
    )
    for title, places in PLACES:
        open_places = [(place, reverse(place.url_name)) for place in places if place.is_open_to(access)]
        links = [Link(place.label, url, place.icon, place.key, _current(url, request.path) if url == here else "") for place, url in open_places]
        if links:
            groups.append((title, links))
    return groups


@dataclass(frozen=True, slots=True)
class DemoPerson:
    """A log-in hint of the demo: whom to be, and what that person is there to see."""

    username: str
    role: str
    sees: str


DEMO_PASSWORD = "gpufleet-demo"  # noqa: S105 - printed on the sign-in page of a demo; no other installation has these people
DEMO_PEOPLE = (
    DemoPerson("root", "Superuser", "everything"),
    DemoPerson("oona", "Operator", "the fleet, its health, every job"),
    DemoPerson("quentin", "Quota admin", "the quota tree and its people"),
    DemoPerson("fay", "Finance", "what it costs and who pays"),
    DemoPerson("tessa", "Team lead", "one team, its quota and its jobs"),
    DemoPerson("sam", "Submitter", "own jobs in one team"),
    DemoPerson("vic", "Viewer", "one team, nothing to change"),
)


def _demo_people() -> dict[str, Any]:
    """Who may be tried out, on a console that was set up with a demo fleet; elsewhere nobody."""
    is_demo = Installation.objects.exclude(demo="none").exists()
    return {"password": DEMO_PASSWORD, "people": DEMO_PEOPLE} if is_demo else {}


def shell(request: HttpRequest) -> dict[str, Any]:
    """Looked up only where a template asks, so that the page for a broken database needs none."""
    return {
        "currency": settings.CURRENCY,
        "navigation": SimpleLazyObject(lambda: navigation(request)),
        "demo": SimpleLazyObject(_demo_people),
        "nobody_yet": SimpleLazyObject(lambda: not User.objects.exists()),
    }
