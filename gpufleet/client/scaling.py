"""`gpufleet scale`: the replicas of a service, and another number of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpufleet.client import DONE
from gpufleet.client.arrays import foreseen_lines
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import exact, lasting, plain, table


@ends_well
def scale(arguments: Sequence[str]) -> int:
    """Show the replicas of a service and how soon added ones had their place, or set how many are wanted."""
    parser = parser_of("scale", scale.__doc__, jobs="1")
    parser.add_argument("replicas", metavar="N", nargs="?", type=int, help="how many are wanted; without it they are shown")
    parser.add_argument("--role", default="", help="which role; needed only where several have a range")
    parser.add_argument("--reason", default="", help="kept in the job's history and in the audit log")
    parser.add_argument("--dry-run", action="store_true", help="say what it would do and cost, and change nothing")
    asked = parser.parse_args(arguments)
    console, path = console_meant(), f"/jobs/{asked.job}/replicas"
    if asked.replicas is None:
        if asked.dry_run or asked.role or asked.reason:
            parser.error("say how many replicas are wanted")
        told = console.get(path)
        return print_json(told) if asked.json else _shown(told)
    body = {"replicas": asked.replicas, "role": asked.role}
    if asked.dry_run:
        found = console.post(f"{path}/preview", body, repeatable=True)
        if asked.json:
            return print_json(found)
        print("\n".join(foreseen_lines(found)))
        return DONE
    told = console.put(path, body | {"reason": asked.reason})
    return print_json(told) if asked.json else _shown(told)


def _shown(told: Mapping[str, Any]) -> int:
    for role in told["roles"]:
        step = f" in steps of {role['step']}" if role["step"] > 1 else ""
        print(f"{plain(role['role'])}: {role['placed']} placed, {role['wanted']} wanted, {role['min']} to {role['max']}{step}")
    if told["waits"]:
        print(f"Waits: {plain(told['waits'])}")
    if told["scalings"]:
        rows = [
            (
                exact(one["at"]),
                plain(one["role"]),
                f"{one['before']} → {one['after']}",
                plain(one["by"]),
                (one["end"] or "waits").replace("_", " "),
                "" if one["seconds"] is None else f"{lasting(one['seconds'])}{'' if one['within_bound'] else ' (late)'}",
            )
            for one in told["scalings"]
        ]
        print("\n".join(["", *table(("AT", "ROLE", "REPLICAS", "BY", "END", f"TOOK (BOUND {told['bound_s']} S)"), rows)]))
    return DONE
