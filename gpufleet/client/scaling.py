"""`gpufleet scale` and `gpufleet replace`: the replicas of a service, another number of them, and all of them anew."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpufleet.client import DONE
from gpufleet.client.arrays import foreseen_lines
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.description import seconds
from gpufleet.client.words import exact, lasting, plain, table

OF_A_REPLACEMENT = ("role", "max_unavailable", "within", "reason")


@ends_well
def scale(arguments: Sequence[str]) -> int:
    """Show the replicas of a service and how soon added ones had their place, or set how many are wanted."""
    parser = parser_of("scale", scale.__doc__, jobs="1")
    parser.add_argument("replicas", metavar="N", nargs="?", type=int, help="how many are wanted; without it they are shown")
    parser.add_argument("--role", default="", help="which role; needed only where several have a range")
    metric = parser.add_mutually_exclusive_group()
    metric.add_argument("--follow", action="store_true", help="follow its metric, the replicas wanted of its service level")
    metric.add_argument("--no-follow", action="store_true", help="stop that; with N, set the number by hand from now on")
    parser.add_argument("--cooldown", help="with --follow: how long it has to want fewer, such as 5m (default) or 90s")
    parser.add_argument("--reason", default="", help="kept in the job's history and in the audit log")
    parser.add_argument("--dry-run", action="store_true", help="say what it would do and cost, and change nothing")
    asked = parser.parse_args(arguments)
    console, path = console_meant(), f"/jobs/{asked.job}/replicas"
    if asked.follow and (asked.replicas is not None or asked.dry_run):
        parser.error("its metric says how many replicas are wanted")
    if asked.cooldown and not asked.follow:
        parser.error("--cooldown goes with --follow")
    if asked.replicas is None and not (asked.follow or asked.no_follow):
        if asked.dry_run or asked.role or asked.reason:
            parser.error("say how many replicas are wanted")
        told = console.get(path)
        return print_json(told) if asked.json else _shown(told)
    if asked.dry_run:
        if asked.replicas is None:
            parser.error("say how many replicas are wanted")
        found = console.post(f"{path}/preview", {"replicas": asked.replicas, "role": asked.role}, repeatable=True)
        if asked.json:
            return print_json(found)
        print("\n".join(foreseen_lines(found)))
        return DONE
    body: dict[str, Any] = {"role": asked.role, "reason": asked.reason}
    body |= {} if asked.replicas is None else {"replicas": asked.replicas}
    body |= {"follow": asked.follow} if asked.follow or asked.no_follow else {}
    body |= {"cooldown_s": seconds(asked.cooldown)} if asked.cooldown else {}
    told = console.put(path, body)
    return print_json(told) if asked.json else _shown(told)


def _shown(told: Mapping[str, Any]) -> int:
    for role in told["roles"]:
        step = f" in steps of {role['step']}" if role["step"] > 1 else ""
        ready = "" if role["ready"] is None else f"{role['ready']} ready, "
        print(f"{plain(role['role'])}: {role['placed']} placed, {ready}{role['wanted']} wanted, {role['min']} to {role['max']}{step}")
    for one in told["replicas"] or ():
        if one["ready"] is not True:
            said = "not ready" if one["ready"] is False else "not known to be ready"
            since = f" since {exact(one['since'])}" if one["since"] else ""
            print(f"  {plain(one['role'])} {one['index']} on {plain(one['node'])}: {said}{since}. {plain(one['why'])}".rstrip())
    if told["waits"]:
        print(f"Waits: {plain(told['waits'])}")
    if rule := told["follow"]:
        said = "not read yet" if rule["read_at"] is None else f"{rule['figure']} wanted at {exact(rule['read_at'])}"
        fewer = f"; fewer from {exact(rule['fewer_from'])}" if rule["fewer_from"] else ""
        print(f"Follows its metric since {exact(rule['since'])}: {said}{fewer}")
    if told["scalings"]:
        rows = [
            (
                exact(one["at"]),
                plain(one["role"]),
                f"{one['before']} → {one['after']}",
                plain(one["by"]),
                (one["end"] or "waits").replace("_", " "),
                "" if one["seconds"] is None else f"{lasting(one['seconds'])}{'' if one['within_bound'] else ' (late)'}",
                "" if one["ready_seconds"] is None else lasting(one["ready_seconds"]),
            )
            for one in told["scalings"]
        ]
        print("\n".join(["", *table(("AT", "ROLE", "REPLICAS", "BY", "END", f"TOOK (BOUND {told['bound_s']} S)", "READY"), rows)]))
    return DONE


@ends_well
def replace(arguments: Sequence[str]) -> int:
    """Show how far a replacement of a service's replicas is, or start them anew, one at a time, each on its own GPUs."""
    parser = parser_of("replace", replace.__doc__, jobs="1")
    parser.add_argument("--role", default="", help="which role; needed only where several have a range")
    parser.add_argument("--max-unavailable", metavar="N", type=int, default=1, help="so many at a time (default 1)")
    parser.add_argument("--within", metavar="LENGTH", default="10m", help="a new replica that cannot serve within it stops the rest (default 10m)")
    parser.add_argument("--reason", default="", help="kept in the job's history and in the audit log")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--apply", action="store_true", help="start them anew; without it nothing is changed")
    what.add_argument("--dry-run", action="store_true", help="say what it would do, and change nothing")
    what.add_argument("--stop", action="store_true", help="take no further replica down")
    asked = parser.parse_args(arguments)
    if not (asked.apply or asked.dry_run or asked.stop) and any(getattr(asked, key) != parser.get_default(key) for key in OF_A_REPLACEMENT):
        parser.error("say --apply to replace the replicas, or --dry-run to see what would happen")
    console, path = console_meant(), f"/jobs/{asked.job}/replacements"
    body: dict[str, Any] = {"role": asked.role, "max_unavailable": asked.max_unavailable, "within_s": seconds(asked.within)}
    if asked.dry_run:
        found = console.post(f"{path}/preview", body, repeatable=True)
        if asked.json:
            return print_json(found)
        print("\n".join(map(plain, found["sentences"])))
        return DONE
    if asked.stop:
        told = console.post(f"{path}/stop", {"reason": asked.reason})
    elif asked.apply:
        told = console.post(path, body | {"reason": asked.reason})
    else:
        told = console.get(path)
    return print_json(told) if asked.json else _replaced(told)


def _replaced(told: Mapping[str, Any]) -> int:
    rows = [
        (
            exact(one["at"]),
            plain(one["role"]),
            f"{one['done']} of {len(one['replicas'])}",
            plain(one["by"]),
            (one["end"] or "goes on").replace("_", " "),
            plain(one["why"]),
        )
        for one in told["items"]
    ]
    print("\n".join(table(("AT", "ROLE", "REPLACED", "BY", "END", "WHY"), rows)) if rows else "No replicas were replaced.")
    return DONE
