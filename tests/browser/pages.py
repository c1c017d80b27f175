"""Which pages there are: every address of the URL table that answers a GET with HTML, found as a person finds them, by following links.

An address without parameters is asked for by itself. One with parameters needs an example, and the examples are the links of other pages; a page that
nobody links to is reported, because nobody would find it.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import httpx
from django.urls import Resolver404, URLPattern, URLResolver, get_resolver, resolve

# The first page of a kind may lack a link that the next one has: the top of the tree, for one, can't be archived.
EXAMPLES = 2
# Home begins with the jobs that wait longest; what a running or ended job leads to is behind these.
EXAMPLES_OF = {"jobs/<slug:public_id>/": 20}
# What is asked of an address that answers nothing without a parameter.
ASKED = {"api/v1/quota-tree": "at=2026-01-01T00:00:00Z"}
_REQUIRED = re.compile(r"<(?:input|select|textarea)\b[^>]*\srequired\b", re.IGNORECASE)
_HREF = re.compile(r'<a\b[^>]*?\bhref="([^"#]+)', re.IGNORECASE)


@dataclass
class Pages:
    """`found`: route -> an address that shows it. `asking`: those of them where a field must be filled in. `unseen`: routes that no link leads to.
    `broken`: what answered with an error."""

    found: dict[str, str] = field(default_factory=dict)
    asking: set[str] = field(default_factory=set)
    unseen: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def routes(patterns: list[URLPattern | URLResolver] | None = None, before: str = "") -> Iterator[str]:
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns, route)
        else:
            yield route


def _route_of(path: str) -> str | None:
    try:
        return str(resolve(path).route)
    except Resolver404:
        return None


def is_closed_door(route: str, status: int) -> bool:
    """allauth brings addresses that this console does not offer, and the API's root is no page: both say 404."""
    return status == 404 and route.startswith(("accounts/", "api/"))


def crawl(origin: str, cookies: dict[str, str]) -> Pages:
    """Everything that this person reaches from the addresses without parameters."""
    known = set(routes())
    pages = Pages()
    waiting = sorted(f"/{route}?{ASKED[route]}" if route in ASKED else f"/{route}" for route in known if "<" not in route and "(" not in route)
    asked: set[str] = set()
    examples: Counter[str] = Counter()
    with httpx.Client(base_url=origin, cookies=cookies, timeout=30, trust_env=False) as client:
        while waiting:
            address = waiting.pop(0)
            route = _route_of(urlsplit(address).path)
            if route is None or address in asked or examples[route] == EXAMPLES_OF.get(route, EXAMPLES):
                continue
            asked.add(address)
            examples[route] += 1
            answer = client.get(address)
            if answer.status_code >= 400 and answer.status_code not in {401, 403, 405, 410} and not is_closed_door(route, answer.status_code):
                pages.broken.append(f"{answer.status_code} for {address}")
            if answer.is_redirect:
                waiting.append(urlsplit(urljoin(address, answer.headers["location"])).path)
            if answer.status_code != 200 or not answer.headers.get("content-type", "").startswith("text/html"):
                continue
            if "<html" not in answer.text[:500].lower():
                continue  # a fragment for htmx, seen on the page that holds it
            if pages.found.setdefault(route, address) == address and _REQUIRED.search(answer.text):
                pages.asking.add(address)
            links = (urlsplit(urljoin(address, link.replace("&amp;", "&"))) for link in _HREF.findall(answer.text))
            waiting.extend(link.path for link in links if f"{link.scheme}://{link.netloc}" in {"://", origin})
        unseen = sorted(route for route in known - set(examples) if not route.startswith(("api/", "ws/")))
        pages.unseen = [route for route in unseen if not _takes_only_writes(client, route)]
    return pages


def _takes_only_writes(client: httpx.Client, route: str) -> bool:
    """What a form is sent to has no page of its own and refuses to be asked for."""
    address = "/" + re.sub(r"<(\w+:)?\w+>", "1", route)
    return "(" not in route and client.get(address).status_code == 405
