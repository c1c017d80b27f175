"""Asking Prometheus for the figures of services: one number a query, bounded in time and size, and every fault in words.

Queries are their owners': a server is asked them only where an operator allowed it, and a wrong one is its service's fault alone.
"""

import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from dashboards.prometheus.asking import Bounds, PrometheusFault, QueryFault, Server
from dashboards.prometheus.credentials import headers_of, secret_of
from dashboards.prometheus.models import PrometheusServer
from dashboards.slo.models import ServiceLevel
from scheduler.notify.outgoing import Rules

logger = logging.getLogger(__name__)

FIELDS = ("latency", "rate", "wanted")
# Of one server and round. What is not asked in that time is asked first in the next round.
BOUNDS = Bounds(seconds=8.0, silence_seconds=3.0, most_bytes=256 << 10)
# Prometheus gives a query up itself, and since 3.0 leaves out what is more than needed to see that there are several series.
SENT = {"timeout": "2s", "limit": "2"}
AT_ONCE = 8
# So many queries in a row that a server does not answer, and it is not asked any more in the round: one alone may be the fault of the query.
TRIES = 2
MOST = {"latency": 1e6, "rate": 1e9, "wanted": 1e5}
MS = 1000

NO_SERIES = "No series: check the name of the metric and its labels."


@dataclass(slots=True)
class Read:
    """What was read of one service. `asked`: every server had time for it, or one that had gave its latency."""

    values: dict[str, float] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    asked: bool = False


def number_of(result: Any, key: str) -> float:
    """The one number that a query gives, or a fault that says what it gives instead."""
    match result:
        case [{"value": [_, str(text)]}] | [int() | float(), str(text)]:
            return _number(text, key)
        case []:
            raise QueryFault(NO_SERIES)
        case [{"values": _} | {"histogram": _} | {"histograms": _}, *_]:
            raise QueryFault("It gives no single number: take a rate, a quantile or another function of it.")
        case [{"value": _}, _, *_]:
            raise QueryFault("It gives several series: wrap it in sum(…), max(…) or another aggregation that gives one.")
    raise PrometheusFault("Its answer is not one of a Prometheus.")


def _number(text: str, key: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise QueryFault("It gives a text, not a number.") from None
    if math.isnan(value):
        raise QueryFault("Not a number (NaN): often there were no requests in its window.")
    if not 0 <= value <= MOST[key]:
        raise QueryFault(f"{text[:40]} cannot be true of it.")
    return value


def levels_read(levels: Sequence[ServiceLevel], servers: Sequence[PrometheusServer], rules: Rules) -> list[Read]:
    """Each service, by the first server that has a number. All servers are asked at once; no table is read here."""
    if not levels or not servers:
        return [Read() for _ in levels]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda server: _asked(server, levels, rules), servers))
    return [_merged([answer[place] for answer in answers]) for place in range(len(levels))]


def _merged(told: Sequence[Read]) -> Read:
    found = Read()
    for key in FIELDS:
        value = next((one.values[key] for one in told if key in one.values), None)
        faults = [one.faults[key] for one in told if key in one.faults]
        if value is not None:
            found.values[key] = value
        elif faults:
            # Of several servers most have no such series: what another says is the fault.
            found.faults[key] = next((fault for fault in faults if fault != NO_SERIES), NO_SERIES)
    if not all(one.asked for one in told):
        # That one server has no such series says nothing of another that was not asked.
        return Read(found.values, asked=True) if "latency" in found.values else Read()
    found.asked = True
    return found


def _asked(server: PrometheusServer, levels: Sequence[ServiceLevel], rules: Rules) -> list[Read]:
    """By one server, for as long as a round may take. A server that cannot be asked is not asked again and again."""
    end, asks = monotonic() + BOUNDS.seconds, None
    gone: list[str] = []
    try:
        secret = secret_of(server)
        if secret is None:
            raise PrometheusFault("Its password or token cannot be read: an operator has to enter it again.")
        asks = Server(server.url, rules, headers_of(server, secret), BOUNDS)
    except PrometheusFault as fault:
        gone = [str(fault)] * TRIES
    found = [Read() for _ in levels]
    for place, (level, read) in enumerate(zip(levels, found, strict=True)):
        # Of the first it is always said how it went, and nothing is waited for at a server that cannot be asked.
        is_bounded = place > 0 and asks is not None
        if is_bounded and monotonic() >= end:
            break
        read.asked = True
        for key in FIELDS:
            query = getattr(level, key)
            if query and len(gone) < TRIES and asks is not None:
                gone = [*gone, silent] if (silent := _one(asks, query, key, read)) else []
            elif query:
                read.faults[key] = gone[-1]
        if is_bounded and read.faults and monotonic() >= end:
            found[place] = Read()  # the end of the round cut it off, which is no fault of its queries
    return [_of_server(server.name, read) for read in found]


def _one(asks: Server, query: str, key: str, read: Read) -> str:
    """Ask one query. Returns why the server could not be asked; empty where it answered, be it with a refusal."""
    try:
        read.values[key] = number_of(asks.result(query, **SENT), key)
    except QueryFault as fault:
        read.faults[key] = str(fault)
    except PrometheusFault as fault:
        read.faults[key] = str(fault)
        return str(fault)
    except Exception:
        # Whatever it says, other services are read on.
        logger.exception("The answer to a query of a service could not be read.")
        read.faults[key] = "Its answer is not one of a Prometheus."
    return ""


def _of_server(name: str, read: Read) -> Read:
    """With the name of the server at its faults, but for what is of the query alone."""
    read.faults = {key: fault if fault == NO_SERIES else f"{name}: {fault[:1].lower()}{fault[1:]}" for key, fault in read.faults.items()}
    return read
