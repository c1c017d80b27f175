"""Accounts and QOS of Slurm as a proposal for the quota tree. What Slurm says and the tree cannot is named, so that nobody misses it later.

An account becomes a node, its `GrpTRES` of GPUs the limit, its fairshare the weight, a default QOS named like a class the default class. Slurm has no
guarantees: those of nodes that exist stay, and new nodes have none.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quotas.drafts import NodeState, Tree
from quotas.models import NodeKind
from quotas.rules import CLASSES, HEAVIEST, NAME, NodeValues, Share

ASSOCIATION = (
    *("Account", "ParentName", "User", "Share", "GrpTRES", "DefaultQOS"),
    *("GrpJobs", "GrpWall", "GrpTRESMins", "MaxTRES", "MaxJobs", "MaxWall"),
)
QOS = ("Name", "Priority", "GrpTRES", "MaxTRES", "MaxTRESPU", "MaxWall", "Preempt", "UsageFactor")
# Of an account: said of all its jobs together in GPU-minutes, of the number of jobs, or of one job. The tree limits GPUs.
NO_PLACE = {
    "GrpJobs": "limits of the number of jobs",
    "GrpWall": "limits of wall time",
    "GrpTRESMins": "limits of GPU-minutes (state a budget instead)",
    "MaxTRES": "limits of a single job",
    "MaxJobs": "limits of the number of jobs",
    "MaxWall": "time limits of jobs (state them in a template)",
}
TRES = re.compile(r"gres/gpu(?::(?P<type>[^=,]+))?=(?P<count>\d+)")
LONGEST_TITLE = 120


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    parent: str  # empty: at the top
    share: str = "1"
    gpus: tuple[tuple[str, int], ...] = ()  # by type of GRES, empty of any
    default_qos: str = ""
    beyond: tuple[str, ...] = ()  # names of limits that the tree has no place for


@dataclass(frozen=True, slots=True)
class Site:
    """What `sacctmgr` prints of one cluster."""

    accounts: tuple[Account, ...]
    people: int
    qos: tuple[str, ...]  # those that say more than a name


@dataclass(slots=True)
class Proposal:
    after: Tree
    left_out: list[str] = field(default_factory=list)


def rows_of(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Lines of `sacctmgr --noheader --parsable2`. Raises ValueError for what it never prints."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split("|")
        if len(cells) != len(fields):
            raise ValueError(f"line {number} has {len(cells)} fields, not {len(fields)} ({', '.join(fields)})")
        found.append(dict(zip(fields, cells, strict=True)))
    return found


def site_of(associations: str, qos: str) -> Site:
    accounts, people = [], set()
    for row in rows_of(associations, ASSOCIATION):
        if row["Account"] == "root":
            continue
        if row["User"]:
            people.add(row["User"])
        else:
            gpus = tuple((match["type"] or "", int(match["count"])) for match in TRES.finditer(row["GrpTRES"]))
            beyond = tuple(name for name in NO_PLACE if row[name])
            parent = "" if row["ParentName"] == "root" else row["ParentName"]
            accounts.append(Account(row["Account"], parent, row["Share"] or "1", gpus, row["DefaultQOS"], beyond))
    speaking = [row for row in rows_of(qos, QOS) if any(row[name] not in ("", "0", "1.000000") for name in QOS[1:])]
    return Site(tuple(accounts), len(people), tuple(sorted(row["Name"] for row in speaking)))


def proposed(before: Tree, site: Site, *, under: str, types: Mapping[str, str], types_of_cluster: Sequence[str]) -> Proposal:
    """The tree with the accounts below the node `under`. `types` are the inventory's by type of GRES, those of the cluster are
    `types_of_cluster`: a limit of GPUs of any type is a limit of the one type that there is, and left out where there are several."""
    proposal, states = Proposal(before), dict(before.states)
    by_place = {(state.parent, state.name): state.id for state in before.states.values()}
    keys: dict[str, str] = {"": under}
    parents = {account.parent for account in site.accounts}
    doubled: dict[str, list[str]] = defaultdict(list)
    used: set[tuple[str, str]] = set()
    for account in _in_order(site.accounts):
        if account.parent not in keys:
            proposal.left_out.append(f"{account.name}: its parent {account.parent} is left out")
            continue
        parent, name = keys[account.parent], plain(account.name)
        if not NAME.fullmatch(name):
            proposal.left_out.append(f"{account.name}: no name that a node can have")
            continue
        if (parent, name) in used:
            doubled[name].append(account.name)
            continue
        used.add((parent, name))
        key = by_place.get((parent, name), f"new:{account.name}"[:120])
        keys[account.name] = key
        old = states.get(key)
        kind = old.values.kind if old is not None else _kind(states[parent], wide=account.name in parents)
        values = old.values if old is not None else NodeValues(kind, title=account.name[:LONGEST_TITLE] if account.name != name else "")
        values = _valued(values, account, types, types_of_cluster, proposal.left_out)
        states[key] = NodeState(key, parent, name, values, False, old.revision if old is not None else 0)
    proposal.left_out += [f"{', '.join(names)}: another account is the node {name}" for name, names in sorted(doubled.items())]
    beyond = {text for account in site.accounts for text in (NO_PLACE[name] for name in account.beyond)}
    for text in sorted(beyond):
        having = [account.name for account in site.accounts if any(NO_PLACE[name] == text for name in account.beyond)]
        proposal.left_out.append(f"{text}: {_some(having)}")
    if site.qos:
        proposal.left_out.append(f"limits, priorities and preemption of QOS: {_some(site.qos)}")
    if site.people:
        proposal.left_out.append(f"{site.people} {'person' if site.people == 1 else 'people'}: give them roles on nodes")
    proposal.after = Tree(states.values())
    return proposal


def plain(name: str) -> str:
    """An account's name as a node's: small letters, digits, - and _."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:60]


def _in_order(accounts: Iterable[Account]) -> list[Account]:
    """Parents first, by name."""
    children: dict[str, list[Account]] = defaultdict(list)
    for account in sorted(accounts, key=lambda one: one.name):
        children[account.parent].append(account)
    found: list[Account] = []
    waiting = children.pop("", [])
    while waiting:
        account = waiting.pop(0)
        found.append(account)
        waiting += children.pop(account.name, [])
    return found + [account for group in children.values() for account in group]


def _kind(above: NodeState, *, wide: bool) -> str:
    order = list(NodeKind.values)
    wanted = NodeKind.DEPARTMENT if wide else NodeKind.TEAM
    return max(wanted, above.values.kind, key=order.index)


def _valued(values: NodeValues, account: Account, types: Mapping[str, str], of_cluster: Sequence[str], left_out: list[str]) -> NodeValues:
    weight = values.weight
    if account.share.isdigit() and 0 < int(account.share) <= HEAVIEST:
        weight = int(account.share)
    elif account.share != "parent":
        left_out.append(f"{account.name}: fairshare {account.share}")
    else:
        left_out.append(f"{account.name}: fairshare of its parent, its weight stays {weight}")
    shares = dict(values.shares)
    typed = {kind for kind, _ in account.gpus if kind}
    for kind, count in account.gpus:
        if not kind and typed:
            continue  # the sum of those that are named
        named = types.get(kind) if kind else (of_cluster[0] if len(of_cluster) == 1 else None)
        if named is None:
            left_out.append(f"{account.name}: its limit of {count} GPUs of {f'the type {kind}' if kind else 'all types together'}")
            continue
        shares[named] = replace(shares.get(named, Share()), limit_milli=1000 * count)
    default = account.default_qos if account.default_qos in CLASSES else values.default_class
    return replace(values, weight=weight, shares=shares, default_class=default)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
