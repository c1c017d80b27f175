"""The frame of every page: the navigation of seven sections, and facts that the shell shows."""

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
    """A page of the navigation: its label, address, icon, the key that opens it after a `g`, and the capability it needs.

    `everywhere` asks for the capability on the whole fleet. `or_needs` is a second capability that also opens the page.
    """

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
class Section:
    """One of the seven entries of the navigation. A section opens at its first place; without a place it is not shown.

    `also` names pages outside the list of places (by the first part of their address) that belong to this section.
    """

    label: str
    icon: str
    places: tuple[Place, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """A place as one page shows it. `current` is the value of `aria-current`: `page` on it, `true` on a page below it, else empty."""

    label: str
    url: str
    icon: str
    key: str
    current: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A section as one page shows it, with the places that this person may open."""

    label: str
    icon: str
    url: str
    links: tuple[Link, ...]
    is_here: bool

    @property
    def current(self) -> str:
        return (self.links[0].current if len(self.links) == 1 else "") or ("true" if self.is_here else "")


SECTIONS: tuple[Section, ...] = (
    Section("Home", "home", (Place("Home", "home", "home", "o"),), also=("/overview/", "/home/")),
    Section(
        "Fleet",
        "chip",
        (
            Place("Fleet map", "fleet", "map", "m"),
            Place("Nodes", "nodes", "node", "n"),
            Place("GPUs", "gpus", "chip", "g"),
            Place("Clusters", "clusters", "cluster", "c"),
            Place("Utilization gap", "gap", "coin", "0"),
            Place("Fragmentation", "fragmentation", "tree", "3"),
            Place("Idle GPUs", "idle", "clock", "z"),
            Place("Incidents", "incidents", "alert", "x"),
        ),
    ),
    Section(
        "Jobs",
        "job",
        (
            Place("All jobs", "jobs", "job", "w"),
            Place("Queue", "queue", "sort", "l"),
            Place("Submit a job", "job_new", "plus", "u", needs=Can.SUBMIT),
            Place("Schedules", "schedules", "refresh", "r"),
            Place("Templates", "templates", "copy", "e"),
        ),
    ),
    Section(
        "Capacity",
        "tree",
        (
            Place("Quotas", "quotas", "tree", "q"),
            Place("Reservations", "calendar", "clock", "v"),
            Place("Budgets", "budgets", "coin", "2"),
            Place("Power", "power", "flame", "5"),
            Place("What-if", "what-ifs", "radar", "4"),
        ),
    ),
    Section(
        "Cost",
        "coin",
        (
            Place("Costs", "costs", "coin", "=", needs=Can.SEE_COSTS),
            Place("Rate cards", "rate_cards", "scroll", "%", needs=Can.SEE_COSTS),
        ),
    ),
    Section(
        "Activity",
        "bell",
        (
            Place("Activity", "activity", "bell", "y"),
            Place("Alerts", "alerts", "alert", "f"),
            Place("Audit log", "audit", "scroll", "a", needs=Can.SEE_AUDIT),
            Place("Notifications", "notices", "bell", "b"),
        ),
    ),
    Section(
        "Settings",
        "wrench",
        (
            Place("People", "people", "people", "p", needs=Can.MANAGE_PEOPLE),
            Place("Tokens", "tokens", "key", "t"),
            Place("Webhooks", "webhooks", "link", "h", needs=Can.MANAGE_PEOPLE, or_needs=Can.OPERATE),
            Place("Telemetry", "sources", "radar", "1", needs=Can.OPERATE, everywhere=True),
            Place("Add a cluster", "cluster_add", "plus", needs=Can.OPERATE, everywhere=True),
            Place("Import", "inventory_import", "upload", "i", needs=Can.OPERATE, everywhere=True),
            Place("Discovery", "inventory_discover", "radar", "d", needs=Can.OPERATE, everywhere=True),
            Place("Scheduler", "scheduler", "clock", "s", everywhere=True),
        ),
        also=("/profile/",),
    ),
)


def _current(url: str, path: str) -> str:
    if path == url:
        return "page"
    return "true" if url != "/" and path.startswith(url) else ""


def navigation(request: HttpRequest) -> list[Entry]:
    """The sections and places that this person may open. A person without any role has none."""
    access = access_of(request)
    path = request.path
    # Of two places that a page lies below, the nearer one is current.
    here = max(
        (reverse(place.url_name) for section in SECTIONS for place in section.places if _current(reverse(place.url_name), path)), key=len, default=""
    )
    entries = []
    for section in SECTIONS:
        opened = [(place, reverse(place.url_name)) for place in section.places if place.is_open_to(access)]
        links = tuple(Link(place.label, url, place.icon, place.key, _current(url, path) if url == here else "") for place, url in opened)
        if links:
            is_here = any(link.current for link in links) or path.startswith(section.also)
            entries.append(Entry(section.label, section.icon, links[0].url, links, is_here))
    return entries


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
    DemoPerson("fay", "Finance", "costs and cost centres"),
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
