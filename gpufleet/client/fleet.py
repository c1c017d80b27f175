"""`gpufleet fleet`, `drain`, `mark`, `spare`, `boundaries`, `abandon`, `quota`, `top`: what the fleet does, what is promised, who uses most of it."""

import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gpufleet.client import DONE, NOT_THERE, USAGE, ClientError
from gpufleet.client.calls import Console
from gpufleet.client.commands import console_meant, ends_well, now_of, parser_of, print_json
from gpufleet.client.quotas import QUOTA_ACTIONS
from gpufleet.client.words import ago, exact, gpus, is_terminal, plain, table

REFRESH_SECONDS = 2.0
CLEAR = "\x1b[H\x1b[2J"
BAR = 20
# More than any fleet has; the search of the list finds more than exact names.
MOST_NODES = 100_000
HEALTH = ("healthy", "suspect", "draining", "drained", "repairing", "burn-in", "down")
BOUNDARIES = ("cores", "mig")
FATES = {"ends": "ends before", "moved": "moves", "stopped": "stops", "stays": "finishes here"}


@ends_well
def fleet(arguments: Sequence[str]) -> int:
    """Show what is allocated and what computes, by GPU type; with --nodes the nodes that need attention, or all of them."""
    parser = parser_of("fleet", fleet.__doc__)
    parser.add_argument("--nodes", choices=("sick", "all"), help="list nodes instead: those that are not healthy, or all")
    parser.add_argument("-n", "--limit", type=int, default=200, help="at most so many nodes (default: 200)")
    asked = parser.parse_args(arguments)
    if asked.nodes:
        health = ["suspect", "draining", "down"] if asked.nodes == "sick" else None
        rows = list(console_meant().pages("/nodes", asked.limit, health=health))
        if asked.json:
            return print_json({"items": rows})
        lines = [(row["name"], row["cluster"], row["health"], str(row["gpus"]), row["gpu_type"] or "-") for row in rows]
        print("\n".join(table(("NODE", "CLUSTER", "HEALTH", "GPUS", "TYPE"), [tuple(map(plain, line)) for line in lines])))
        return DONE
    told = console_meant().get("/fleet/summary")
    if asked.json:
        return print_json(told)
    print("\n".join(_types(told)))
    return DONE


@ends_well
def drain(arguments: Sequence[str]) -> int:
    """Drain nodes: they take no new jobs, and running jobs finish, or are moved or stopped now or at a time."""
    parser = parser_of("drain", drain.__doc__)
    parser.add_argument("nodes", metavar="NODE", nargs="+", help="ids or names of nodes, such as n-17, alpha-n018 or alpha/alpha-n018")
    parser.add_argument("--jobs", choices=("finish", "move", "stop"), default="finish", help="what becomes of running jobs (default: finish)")
    parser.add_argument("--at", metavar="TIME", help="when jobs that still run are moved or stopped, such as 2026-11-20T18:00:00Z (default: now)")
    parser.add_argument("--reason", default="", help="kept in the history and in the audit log; required unless --dry-run")
    parser.add_argument("--begins", metavar="TIME", help="when the drain begins, such as 2026-11-20T18:00:00Z; without, at once")
    parser.add_argument("--dry-run", action="store_true", help="show what becomes of each job, and change nothing")
    asked = parser.parse_args(arguments)
    if not asked.reason.strip() and not asked.dry_run:
        parser.error("--reason is required")
    place = console_meant()
    body = {"nodes": [_node_named(place, name) for name in asked.nodes], "jobs": asked.jobs, "reason": asked.reason or "dry run"}
    body |= {key: value for key, value in (("at", asked.at), ("begins", asked.begins)) if value}
    told = place.post("/nodes/drain", body, dry_run="true" if asked.dry_run else None)
    if asked.json:
        return print_json(told)
    heads = ("JOB", "NAME", "TEAM", "GPUS", "EXPECTED END", "WHAT HAPPENS", "LEAVES", "LOST")
    lines = [
        (
            job["id"],
            plain(job["name"]),
            job["quota"],
            gpus(job["gpus_milli"]),
            exact(job["ends_at"]),
            FATES[job["fate"]],
            exact(job["leaves_at"]),
            f"{job['lost_seconds'] // 60} min" if job["leaves_at"] else "-",
        )
        for job in told["jobs"]
    ]
    print("\n".join(table(heads, lines)) if lines else "No job that you may see runs there.")
    if told["others"]:
        print(f"Jobs of other teams: {told['others']}.")
    if not asked.dry_run and asked.begins:
        print(f"Planned: {', '.join(plain(node['name']) for node in told['nodes'])}.")
    elif not asked.dry_run:
        print(f"Draining {', '.join(plain(node['name']) for node in told['nodes'])}: {told['asked']} asked to leave, owners of {told['told']} told.")
    return DONE


@ends_well
def mark(arguments: Sequence[str]) -> int:
    """Take nodes to another health, now or at a time. A drain that moves or stops jobs is `gpufleet drain`."""
    parser = parser_of("mark", mark.__doc__)
    parser.add_argument("health", choices=HEALTH, help="what the nodes become; not every health follows on every other")
    parser.add_argument("nodes", metavar="NODE", nargs="+", help="ids or names of nodes, such as n-17, alpha-n018 or alpha/alpha-n018")
    parser.add_argument("--reason", default="", help="kept in the history and in the audit log; required unless --dry-run")
    parser.add_argument("--begins", metavar="TIME", help="when they become so, such as 2026-11-20T18:00:00Z; without, at once")
    parser.add_argument("--dry-run", action="store_true", help="show what it would do, and change nothing")
    asked = parser.parse_args(arguments)
    if not asked.reason.strip() and not asked.dry_run:
        parser.error("--reason is required")
    place = console_meant()
    reason = asked.reason or "dry run"
    body = {"to": asked.health.replace("-", "_"), "reason": reason} | ({"begins": asked.begins} if asked.begins else {})
    done = []
    for node in [_node_named(place, name) for name in asked.nodes]:
        told = place.post(f"/nodes/{node}/health", body, dry_run="true" if asked.dry_run else None)
        done.append(told)
        if asked.dry_run and not asked.json:
            print("".join(f"{node}  {plain(sentence)}\n" for sentence in told["told"]), end="", flush=True)
        elif not asked.json:
            plan = told["planned"]
            print(f"{node}  {exact(plan['begins'])}  {plan['to']}  {plan['id']}" if plan else f"{node}  {told['health']}", flush=True)
    return print_json({"items": done}) if asked.json else DONE


@ends_well
def spare(arguments: Sequence[str]) -> int:
    """Keep nodes out of normal placement as spares, or give them back. Running jobs go on."""
    parser = parser_of("spare", spare.__doc__)
    parser.add_argument("nodes", metavar="NODE", nargs="+", help="ids or names of nodes, such as n-17, alpha-n018 or alpha/alpha-n018")
    parser.add_argument("--back", action="store_true", help="give them back to placement")
    parser.add_argument("--reason", required=True, help="kept in the history and in the audit log")
    asked = parser.parse_args(arguments)
    place = console_meant()
    done = []
    for node in [_node_named(place, name) for name in asked.nodes]:
        told = place.post(f"/nodes/{node}/spare", {"spare": not asked.back, "reason": asked.reason})
        done.append(told)
        if not asked.json:
            print(f"{node}  {'spare' if told['spare'] else 'in placement'}", flush=True)
    return print_json({"items": done}) if asked.json else DONE


@ends_well
def boundaries(arguments: Sequence[str]) -> int:
    """Show what nodes enforce between jobs, or state which boundaries they were verified to enforce."""
    parser = parser_of("boundaries", boundaries.__doc__)
    parser.add_argument("nodes", metavar="NODE", nargs="+", help="ids or names of nodes, such as n-17, alpha-n018 or alpha/alpha-n018")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--state", choices=BOUNDARIES, action="append", help="a boundary that holds; repeat it for several, others are stated no more")
    what.add_argument("--none", action="store_true", help="state none")
    parser.add_argument("--reason", default="", help="kept in the history and in the audit log; required with --state and --none")
    asked = parser.parse_args(arguments)
    changes = bool(asked.state or asked.none)
    if changes and not asked.reason.strip():
        parser.error("--reason is required")
    if asked.reason and not changes:
        parser.error("say --state or --none")
    place = console_meant()
    done = []
    for node in [_node_named(place, name) for name in asked.nodes]:
        body = {"boundaries": sorted(set(asked.state or ())), "reason": asked.reason}
        told = place.put(f"/nodes/{node}/boundaries", body) if changes else place.get(f"/nodes/{node}")
        done.append({"id": node, "boundaries": told["boundaries"]})
        if not asked.json:
            said = ", ".join(f"{plain(name)} ({plain(by)})" for name, by in sorted(told["boundaries"].items()))
            print(f"{node}  {said or 'none'}", flush=True)
    return print_json({"items": done}) if asked.json else DONE


@ends_well
def abandon(arguments: Sequence[str]) -> int:
    """Give up the jobs of a cluster that is gone for good: they fail, or are queued again where another cluster fits. It cannot be undone."""
    parser = parser_of("abandon", abandon.__doc__)
    parser.add_argument("cluster", metavar="CLUSTER", help="name of the cluster; it must not answer")
    parser.add_argument("--jobs", choices=("requeue", "fail"), default="requeue", help="what becomes of the jobs (default: requeue those that fit)")
    parser.add_argument("--reason", default="", help="kept in the history and in the audit log; required unless --dry-run")
    parser.add_argument("--confirm", metavar="CLUSTER", default="", help="its name once more; required unless --dry-run")
    parser.add_argument("--dry-run", action="store_true", help="show what becomes of each job, and change nothing")
    asked = parser.parse_args(arguments)
    if not asked.dry_run and not asked.reason.strip():
        parser.error("--reason is required")
    if not asked.dry_run and asked.confirm != asked.cluster:
        parser.error(f"--confirm {asked.cluster} is required")
    place = console_meant()
    body = {"jobs": asked.jobs, "reason": asked.reason or "dry run", "confirm": asked.confirm}
    told = place.post(f"/clusters/{quote(asked.cluster, safe='')}/give-up", body, dry_run="true" if asked.dry_run else None)
    if asked.json:
        return print_json(told)
    rows = told["jobs"]
    lines = [
        (job["id"], plain(job["name"]), job["quota"], gpus(job["gpus_milli"]), "queued again" if job["requeued"] else "not queued again")
        for job in rows
    ]
    print("\n".join(table(("JOB", "NAME", "TEAM", "GPUS", "WHAT HAPPENS"), lines)) if lines else "No job that you may see runs there.")
    if told["others"]:
        print(f"Jobs of other teams: {told['others']}.")
    done = f"{told['requeued']} of {len(rows) + told['others']} jobs {'would be' if asked.dry_run else 'are'} queued again."
    held = f"{told['uncharged_milli_seconds'] / 3_600_000:,.1f} GPU-hours held since, not charged"
    print(f"Not responding since {exact(told['silent_since'])}, {held}. {done}")
    return DONE


def _node_named(place: Console, name: str) -> str:
    """The id of a node, by its id, its name or `cluster/name`. What may mean several nodes is refused, as one of them would be the wrong one."""
    short = name.rpartition("/")[2]
    rows = place.pages("/nodes", MOST_NODES, q=short)
    found = {str(row["id"]): f"{row['cluster']}/{row['name']}" for row in rows if name in (row["id"], row["name"], f"{row['cluster']}/{row['name']}")}
    if len(found) > 1:
        listed = ", ".join(f"{key} ({plain(place_of)})" for key, place_of in sorted(found.items()))
        raise ClientError(USAGE, f"{plain(name)} may be one of several nodes: {listed}. Write cluster/name or the id.")
    if not found:
        raise ClientError(NOT_THERE, f"There is no node {name}.")
    return next(iter(found))


def _types(told: dict[str, Any]) -> list[str]:
    heads = ("TYPE", "GPUS", "OUT", "ALLOCATED", "FREE", "COMPUTING", "IDLE HELD", "NO READING")
    lines = [
        (
            plain(row["gpu_type"]),
            str(row["gpus"]),
            str(row["out_of_service"]),
            f"{gpus(row['allocated_milli'])} {_part(row['allocated_milli'], row['capacity_milli'])}",
            gpus(row["free_milli"]),
            f"{gpus(row['active_milli'])} {_part(row['active_milli'], row['capacity_milli'])}",
            gpus(row["idle_milli"]),
            str(row["without_reading"]),
        )
        for row in told["types"]
    ]
    return table(heads, lines)


def _part(milli: int, of: int) -> str:
    return f"({100 * milli // of}%)" if of else "(-)"


@ends_well
def quota(arguments: Sequence[str]) -> int:
    """Show the quota tree: what each node is promised of each GPU type, and what it holds. Or change it: changes, change, set, export, import."""
    if arguments and arguments[0] in QUOTA_ACTIONS:
        return QUOTA_ACTIONS[arguments[0]](arguments[1:])
    parser = parser_of("quota", quota.__doc__)
    parser.add_argument("path", nargs="?", help="only this node and what lies below it")
    parser.add_argument("--paths", action="store_true", help="print paths alone, for scripts")
    asked = parser.parse_args(arguments)
    nodes = console_meant().get("/quotas")
    if asked.path:
        top = asked.path.strip("/")
        nodes = [node for node in nodes if node["path"] == top or node["path"].startswith(f"{top}/")]
        if not nodes:
            raise ClientError(NOT_THERE, f"There is no quota {asked.path} that you may see.")
    if asked.json:
        return print_json({"items": nodes})
    if asked.paths:
        print("".join(f"{plain(node['path'])}\n" for node in nodes), end="")
        return DONE
    rows = [line for node in nodes for line in _shares(node)]
    print("\n".join(table(("QUOTA", "TYPE", "PROMISED", "LIMIT", "HELD", "USE"), rows)))
    return DONE


def _shares(node: dict[str, Any]) -> list[tuple[str, ...]]:
    name = plain(node["path"])
    found: list[tuple[str, ...]] = []
    for gpu_type, share in sorted(node["shares"].items()):
        promised, limit, used = share["guaranteed_milli"], share["limit_milli"], share["used_milli"]
        found.append(
            (
                name if not found else "",
                plain(gpu_type),
                "unlimited" if promised is None else gpus(promised),
                "-" if limit is None else gpus(limit),
                gpus(used),
                _bar(used, promised),
            )
        )
    return found or [(name, "-", "-", "-", "-", "")]


def _bar(used: int, promised: int | None) -> str:
    """What is held of what is promised; what is beyond it is borrowed."""
    if not promised:
        return "borrowed" if used and promised == 0 else ""
    filled = min(BAR, BAR * used // promised)
    borrowed = f" +{gpus(used - promised)} borrowed" if used > promised else ""
    return "#" * filled + "." * (BAR - filled) + borrowed


@ends_well
def top(arguments: Sequence[str]) -> int:
    """Show the jobs that hold most GPUs, and what waits; on a terminal again every two seconds until Ctrl-C."""
    parser = parser_of("top", top.__doc__)
    parser.add_argument("-n", "--limit", type=int, default=20, help="at most so many jobs (default: 20)")
    parser.add_argument("--team", help="path of a quota, with all below it")
    parser.add_argument("--once", action="store_true", help="once, also on a terminal")
    asked = parser.parse_args(arguments)
    if asked.limit < 1:
        raise ClientError(USAGE, "-n: at least 1.")
    place = console_meant()
    while True:
        holding = list(place.pages("/jobs", asked.limit, phase="holding", sort="-gpus", team=asked.team))
        waiting = list(place.pages("/jobs", asked.limit, phase="waiting", sort="-gpus", team=asked.team))
        summary = place.get("/fleet/summary")
        if asked.json:
            return print_json({"holding": holding, "waiting": waiting, "fleet": summary})
        text = [*_types(summary), "", *_jobs("ON GPUS", holding), "", *_jobs("WAITING", waiting)]
        again = is_terminal() and not asked.once
        sys.stdout.write((CLEAR if again else "") + "\n".join(text) + "\n")
        sys.stdout.flush()
        if not again:
            return DONE
        time.sleep(REFRESH_SECONDS)


def _jobs(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return [f"{title}: no job"]
    lines = [
        (row["id"], gpus(row["gpus_milli"]), row["state"], ago(row["since"]), plain(row["quota"]), plain(row["name"]), now_of(row)) for row in rows
    ]
    return table((title, "GPUS", "STATE", "SINCE", "TEAM", "NAME", "NOW"), lines)
