"""`gpufleet idle`: idle allocations, and what to do about one."""

from collections.abc import Sequence
from typing import Any

from gpufleet.client import DONE
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import ago, gpus, gpus_told, plain, table


@ends_well
def idle(arguments: Sequence[str]) -> int:
    """List idle allocations, the most waste first; or notify the owner of one, reclaim its GPUs, or snooze it."""
    parser = parser_of("idle", idle.__doc__)
    parser.add_argument("action", nargs="?", default="list", choices=("list", "show", "notify", "reclaim", "snooze"))
    parser.add_argument("episode", nargs="?", metavar="EPISODE", help="id of an episode, such as e-21")
    parser.add_argument("--all", action="store_true", help="also those that have ended")
    parser.add_argument("--team", help="path of a quota, with all below it")
    parser.add_argument("--since", help="that began on this day or later, such as 2026-11-17")
    parser.add_argument("--reason", default="", help="told to the owner, and kept in the audit log")
    parser.add_argument("--hold", action="store_true", help="reclaim: hold the job until someone releases it")
    parser.add_argument("--hours", type=int, default=4, help="snooze: for so long (default: 4)")
    parser.add_argument("-n", "--limit", type=int, default=50, help="list: at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    place = console_meant()
    if asked.action == "list":
        state = None if asked.all or asked.since else "yes"
        facts = {"open": state, "team": asked.team, "from": asked.since}
        rows = list(place.pages("/idle", asked.limit, **facts))
        if asked.json:
            return print_json({"items": rows})
        print("\n".join(_lines(rows)))
        return DONE
    if not asked.episode:
        parser.error("name an episode, such as e-21")
    if asked.action == "show":
        told = place.get(f"/idle/{asked.episode}")
    else:
        body = {"notify": {"reason": asked.reason}, "reclaim": {"reason": asked.reason, "hold": asked.hold}}
        sent = body.get(asked.action, {"reason": asked.reason, "hours": asked.hours})
        told = place.post(f"/idle/{asked.episode}/{asked.action}", sent)
    if asked.json:
        return print_json(told)
    print("\n".join(_shown(told)))
    return DONE


def _lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["No allocation is idle."]
    heads = ("EPISODE", "JOB", "NAME", "OWNER", "TEAM", "IDLE GPUS", "SINCE", "GPU HOURS", "STEP")
    return table(
        heads,
        [
            (
                row["id"],
                row["job"],
                plain(row["job_name"]),
                plain(row["owner"] or "-"),
                plain(row["quota"]),
                f"{gpus(row['idle_milli'])} of {gpus(row['held_milli'])}",
                ago(row["started_at"]),
                f"{row['wasted_gpu_hours_milli'] / 1000:,.1f}",
                row["stage"] if row["ended_at"] is None else "ended",
            )
            for row in rows
        ],
    )


def _shown(told: dict[str, Any]) -> list[str]:
    return [
        f"{told['id']} of {told['job']} ({plain(told['job_name'])}), {plain(told['quota'])}: "
        f"{gpus_told(told['idle_milli'], 'idle')}, {told['stage']}.",
        *(f"  {step['at']}  {plain(step['text'])} ({plain(step['by'])})" for step in told["steps"]),
    ]
