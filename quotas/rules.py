"""The rules of the tree (QTA-1) as plain functions: values in, faults by field out. They touch no database."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from quotas.models import Colocation, Estimates, NodeKind, ReliefChoice, SharingTrust, TypeChoice

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
DEEPEST = 12
LONGEST_PATH = 500
MOST = 1_000_000_000  # a million GPUs: more than that is a slip of the keyboard
HEAVIEST = 1_000_000
LONGEST_SECONDS = 366 * 86_400
CLASSES = ("inference", "interactive", "batch")
# Each of a node: how many jobs may be submitted to it in a minute, and how many may wait there.
SUBMISSION_LIMITS = ("submits_per_minute", "waiting_limit")
MOST_JOBS = 1_000_000
WIDTH = {kind: place for place, kind in enumerate(NodeKind.values)}

Faults = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Share:
    """What a node is promised of one GPU type. `guaranteed_milli` None: as much as it asks for; `limit_milli` None: no limit."""

    guaranteed_milli: int | None = 0
    limit_milli: int | None = None
    weight: int | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class NodeValues:
    """All that a node says of itself, apart from its name and place."""

    kind: str
    title: str = ""
    cost_centre: str = ""
    weight: int = 1
    priority: int = 100
    overcommit: bool = False
    shares: Mapping[str, Share] = field(default_factory=dict)
    preempt_min_runtime_s: int | None = None
    reclaim_min_runtime_s: int | None = None
    submits_per_minute: int | None = None
    waiting_limit: int | None = None
    default_class: str = ""
    needs_approval: bool = False
    policy: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """A fleet-wide rule of the policy: a number with its bounds, or one of some words. What is not stated is as the operator configured it."""

    title: str
    help: str
    least: int = 0
    most: int = LONGEST_SECONDS
    choices: Mapping[str, str] = field(default_factory=dict)  # each with its words
    unit: str = "s"


POLICY: Mapping[str, Rule] = {
    "half_life_s": Rule("Usage half-life", "Past usage counts half after this time.", least=60),
    "usage_weight_millionths": Rule("Usage weight", "Effect of past usage on shares of idle GPUs. 0: none.", most=1_000_000_000, unit="millionths"),
    "sharing_trust": Rule("Sharing trust", "Jobs that may share one GPU by MPS.", choices=dict(SharingTrust.choices), unit=""),
    "colocation": Rule("Colocation", "Boundary needed between services and other work.", choices=dict(Colocation.choices), unit=""),
    "relief": Rule("Relief", "Effect of a service level broken because of co-tenants.", choices=dict(ReliefChoice.choices), unit=""),
    "relief_after_s": Rule("Relief after", "Time over its objective before a co-tenant is evicted.", least=60),
    "relief_every_s": Rule("Relief interval", "Least time between two evictions for one service.", least=60),
    "relief_apart_s": Rule("Relief cool-down", "Time after a breach in which evicted jobs stay away."),
    "type_choice": Rule("GPU type choice", "Accepted type that a job gets first, unless it states it.", choices=dict(TypeChoice.choices), unit=""),
    "estimates": Rule("Estimates", "How estimates of run times count in plans.", choices=dict(Estimates.choices), unit=""),
    **{f"max_wait_{name}_s": Rule(f"Longest wait, {name}", "After this wait a job heads the reservations.", least=1) for name in CLASSES},
    **{
        f"worth_{name}_gpu_s": Rule(f"Worth, {name}", "Most lost work that a job above its guarantee may cause.", most=MOST, unit="GPU-s")
        for name in CLASSES
    },
}
NODE_FIELDS = tuple(one.name for one in fields(NodeValues))
SHARE_FIELDS = tuple(one.name for one in fields(Share))


def said(milli: int | None) -> str:
    """An amount as a sentence has it."""
    if milli is None:
        return "unlimited"
    return f"{milli / 1000:,.3f}".rstrip("0").rstrip(".")


def note(faults: Faults, path: str, message: str) -> None:
    faults.setdefault(path, []).append(message)


def name_faults(name: str) -> Faults:
    if NAME.fullmatch(name):
        return {}
    return {"name": ["Use small letters, digits, - and _, at most 60, beginning with a letter or a digit."]}


def place_faults(*, kind: str, parent_kind: str | None, path: str, depth: int) -> Faults:
    faults: Faults = {}
    if kind not in WIDTH:
        note(faults, "kind", "Choose one of " + ", ".join(NodeKind.values) + ".")
    elif parent_kind is None and kind != NodeKind.ORG:
        note(faults, "kind", "The top of the tree is an organisation.")
    elif parent_kind in WIDTH and WIDTH[kind] < WIDTH[parent_kind]:
        note(faults, "kind", f"A {NodeKind(kind).label.lower()} can't lie below a {NodeKind(parent_kind).label.lower()}.")
    if parent_kind == NodeKind.USER:
        note(faults, "parent", "A person's node has nothing below it.")
    if depth >= DEEPEST:
        note(faults, "parent", f"The tree can be {DEEPEST} levels deep.")
    if len(path) > LONGEST_PATH:
        note(faults, "name", f"The whole path can have {LONGEST_PATH} characters.")
    return faults


def value_faults(values: NodeValues) -> Faults:
    """What is wrong with a node's values, whatever stands around it."""
    faults: Faults = {}
    for name, longest in (("title", 120), ("cost_centre", 40)):
        if len(getattr(values, name)) > longest:
            note(faults, name, f"It can have {longest} characters.")
    for name in ("weight", "priority"):
        if not 0 <= getattr(values, name) <= HEAVIEST:
            note(faults, name, f"It must lie between 0 and {HEAVIEST:,}.")
    for name in ("preempt_min_runtime_s", "reclaim_min_runtime_s"):
        length = getattr(values, name)
        if length is not None and not 0 <= length <= LONGEST_SECONDS:
            note(faults, name, f"It must lie between 0 and {LONGEST_SECONDS:,} s.")
    for name in SUBMISSION_LIMITS:
        limit = getattr(values, name)
        if limit is not None and not 0 <= limit <= MOST_JOBS:
            note(faults, name, f"It must lie between 0 and {MOST_JOBS:,}.")
    if values.default_class and values.default_class not in CLASSES:
        note(faults, "default_class", f"Choose one of {', '.join(CLASSES)}.")
    for name, value in values.policy.items():
        if message := _policy_fault(name, value):
            note(faults, f"policy.{name}", message)
    for gpu_type, share in values.shares.items():
        at = f"shares.{gpu_type}"
        if not GPU_TYPE.fullmatch(gpu_type):
            note(faults, at, "This is not the name of a GPU type.")
        for name in ("guaranteed_milli", "limit_milli"):
            amount = getattr(share, name)
            if amount is not None and not 0 <= amount <= MOST:
                note(faults, f"{at}.{name}", f"It must lie between 0 and {said(MOST)} GPUs.")
        for name in ("weight", "priority"):
            number = getattr(share, name)
            if number is not None and not 0 <= number <= HEAVIEST:
                note(faults, f"{at}.{name}", f"It must lie between 0 and {HEAVIEST:,}.")
        if share.limit_milli is not None and share.guaranteed_milli is not None and share.limit_milli < share.guaranteed_milli:
            note(faults, f"{at}.limit_milli", f"The limit must be at least the guarantee, {said(share.guaranteed_milli)}.")
    return faults


def _policy_fault(name: str, value: Any) -> str:
    rule = POLICY.get(name)
    if rule is None:
        return f"Unknown rule. Rules are {', '.join(POLICY)}."
    if rule.choices:
        return "" if value in rule.choices else f"Choose one of {', '.join(rule.choices)}."
    if isinstance(value, bool) or not isinstance(value, int) or not rule.least <= value <= rule.most:
        return f"It must be a whole number between {rule.least:,} and {rule.most:,}."
    return ""


Guarantees = Mapping[str, int | None]


def guarantees(shares: Mapping[str, Share]) -> Guarantees:
    return {gpu_type: share.guaranteed_milli for gpu_type, share in shares.items()}


def overpromised(parent: Guarantees, children: Iterable[Guarantees]) -> dict[str, tuple[int | None, int | None]]:
    """GPU types of which the children are promised more than the parent has, with both sums. A type that is not named is 0; None is unlimited."""
    wanted: dict[str, int | None] = {}
    for child in children:
        for gpu_type, amount in child.items():
            sofar = wanted.get(gpu_type, 0)
            wanted[gpu_type] = None if amount is None or sofar is None else sofar + amount
    over: dict[str, tuple[int | None, int | None]] = {}
    for gpu_type, total in sorted(wanted.items()):
        has = parent.get(gpu_type, 0)
        if has is not None and (total is None or total > has):
            over[gpu_type] = (total, has)
    return over


FIELD_WORDS = {
    "preempt_min_runtime_s": "minimum run time, preemption (s)",
    "reclaim_min_runtime_s": "minimum run time, reclaim (s)",
    "submits_per_minute": "submissions a minute",
}


def field_word(name: str) -> str:
    """A field of a node or share as people call it."""
    return FIELD_WORDS.get(name, name.removesuffix("_milli").replace("_", " "))
