"""Whole arrays at a terminal: how far one is, and one action on all of its jobs, part by part."""

import json
import re
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpufleet.client import DONE, NOT_ALLOWED, REFUSED
from gpufleet.client.calls import Console
from gpufleet.client.words import ahead, exact, gpus, gpus_told, is_terminal, plain, plural, table

BLAME = {"not_allowed": NOT_ALLOWED, "refused": REFUSED, "stale": REFUSED}
FORESEEN = (
    *("sentences", "freed_milli", "freed_micros_per_hour", "lost_micros", "currency", "cancelled_along", "notified", "starts"),
    *("effects", "hidden_effects", "more_effects"),
)
LEFT = {"same": "so already", "refused": "not in a state for it", "stale": "changed meanwhile", "not_allowed": "not yours to touch"}


def is_array(name: str) -> bool:
    return re.fullmatch(r"a-[0-9a-z]+", name) is not None


def array_shown(console: Console, name: str, *, as_json: bool) -> int:
    found = console.get(f"/arrays/{name}")
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return DONE
    counts = found["counts"]
    print(f"{found['id']}  {plain(found['name'])}")
    end = exact(found["ended_at"]) if found["ended_at"] else ""
    if found["foreseen_end"]:
        end = f"{ahead(found['foreseen_end'])} ({'by starts and estimates' if found['foreseen_by'] == 'starts' else 'at the pace until now'})"
    cost = f", {found['cost_micros'] / 1_000_000:,.2f} {plain(found['currency'])}" if found["cost_micros"] is not None else ""
    facts = [
        ("Team", f"{plain(found['quota'])}, by {plain(found['owner'] or '-')}"),
        ("Jobs", f"{plural(found['size'], 'job')}, {found['ended_percent']}% ended"),
        ("States", ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), key=lambda one: -one[1]))),
        ("Held back", str(found["held"]) if found["held"] else ""),
        ("Holds", gpus_told(found["holding_milli"]) if found["holding_milli"] else ""),
        ("Used", f"{found['gpu_hours']:,.2f} GPU-hours{cost}"),
        ("Submitted", exact(found["submitted_at"])),
        ("All done", end or "unknown"),
        ("Failed", " ".join(found["failed"][:10]) + (f" and {counts['failed'] - 10} more" if counts.get("failed", 0) > 10 else "")),
    ]
    for label, value in facts:
        if value:
            print(f"  {label:<11} {value}")
    return DONE


def array_steered(console: Console, name: str, body: dict[str, Any], *, dry_run: bool, quiet: bool) -> dict[str, Any]:
    """All parts of it, one after the other. Each may be sent again when its answer is lost: what is so already stays."""
    path, counts, batches, plans, after = f"/arrays/{name}/bulk", Counter[str](), [], [], -1
    if dry_run:
        told: dict[str, Any] = console.post(path, body, repeatable=True, dry_run=True)
        counts.update(told["counts"])
    else:
        while True:
            told = console.post(path, body | {"after": after}, key=uuid.uuid4().hex, repeatable=True)
            counts.update(told["counts"])
            batches += [told["batch"]] if told["batch"] else []
            plans += [told["planned"]] if told["planned"] else []
            if told["next"] is None:
                break
            after = told["next"]
            if is_terminal(sys.stderr):
                print(f"{name}: {plural(sum(counts.values()), 'job')} looked at …", file=sys.stderr)
    if plans and not quiet:
        print(f"{name}  {plural(sum(counts.values()), 'job')} planned for {plain(body['begins'])}: {' '.join(plans)}")
    elif not quiet:
        would = "would change" if dry_run else "changed"
        print(
            "  ".join([name, f"{plural(counts['changes'], 'job')} {would}", *(f"{counts[key]} {said}" for key, said in LEFT.items() if counts[key])])
        )
        if dry_run:
            print("\n".join(foreseen_lines(told)))
    return {"array": name, "dry_run": dry_run, "counts": dict(counts), "batches": batches, "planned": plans} | (foreseen_of(told) if dry_run else {})


def foreseen_of(answer: dict[str, Any]) -> dict[str, Any]:
    """What a dry run says besides its verdicts."""
    return {name: answer[name] for name in FORESEEN}


def foreseen_lines(answer: dict[str, Any]) -> list[str]:
    """What a dry run says of a change: the sentences of the console's preview, and each job that it touches."""
    heads = ("JOB", "NAME", "TEAM", "GPUS", "THEN", "WHY", "LOST")
    rows = [
        (one["job"], plain(one["name"]), one["path"], gpus(one["gpus_milli"]), one["effect"], plain(one["detail"]), _lost(one["lost_seconds"]))
        for one in answer["effects"] or ()
    ]
    return [*map(plain, answer["sentences"] or ()), *(table(heads, rows) if rows else ())]


def _lost(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds else "-"


def arrays_blame(steered: Sequence[dict[str, Any]]) -> int:
    """Parts that are not in a state for it are to be expected; where nothing at all could be done, that is how the program ends."""
    idle = [one["counts"] for one in steered if not one["counts"].get("changes") and not one["counts"].get("same")]
    return next((status for counts in idle for key, status in BLAME.items() if counts.get(key)), DONE)
