"""`gpufleet health` and `gpufleet alerts`: what is wrong with the hardware, and what fires."""

from collections.abc import Sequence

from gpufleet.client import DONE
from gpufleet.client.commands import console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import ago, plain, plural, table


@ends_well
def health(arguments: Sequence[str]) -> int:
    """Show rules that hold now and stragglers; or list incidents, or show one."""
    parser = parser_of("health", health.__doc__)
    parser.add_argument("action", nargs="?", default="now", choices=("now", "incidents", "show"))
    parser.add_argument("incident", nargs="?", metavar="INCIDENT", help="id of an incident, such as in-12")
    parser.add_argument("--all", action="store_true", help="incidents: also those that are closed")
    parser.add_argument("-n", "--limit", type=int, default=50, help="incidents: at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    place = console_meant()
    if asked.action == "show":
        if not asked.incident:
            parser.error("name an incident, such as in-12")
        told = place.get(f"/incidents/{asked.incident}")
        if asked.json:
            return print_json(told)
        print(f"{told['id']} of {plain(told['node'])}: {plain(told['title'])}")
        print("\n".join(f"  {step['at']}  {plain(step['text'])} ({plain(step['by'])})" for step in told["steps"]))
        return DONE
    if asked.action == "incidents":
        rows = list(place.pages("/incidents", asked.limit, open=None if asked.all else "yes"))
        if asked.json:
            return print_json({"items": rows})
        heads = ("INCIDENT", "NODE", "HEALTH", "SINCE", "JOBS HURT", "WHAT")
        lines = [(row["id"], plain(row["node"]), row["health"], ago(row["opened_at"]), str(row["jobs_hurt"]), plain(row["title"])) for row in rows]
        print("\n".join(table(heads, lines)) if lines else "No incident is open.")
        return DONE
    told = place.get("/health")
    if asked.json:
        return print_json(told)
    print(f"{plural(told['open_incidents'], 'open incident')}, {told['incidents']} in 30 days.")
    found = [(plain(row["node"]), row["action"], ago(row["since"]), plain(row["text"])) for row in told["findings"]]
    slow = [
        (row["id"], plain(row["node"]), f"{row['rank']} of {row['ranks']}", f"{row['percent']}%", plain(row["cause"])) for row in told["stragglers"]
    ]
    if found:
        print("\n".join(table(("NODE", "ACTION", "SINCE", "FINDING"), found)))
    if slow:
        print("\n".join(table(("STRAGGLER", "NODE", "RANK", "SLOWER", "CAUSE"), slow)))
    return DONE


@ends_well
def alerts(arguments: Sequence[str]) -> int:
    """List alerts that fire; acknowledge one; silence a rule, or all."""
    parser = parser_of("alerts", alerts.__doc__)
    parser.add_argument("action", nargs="?", default="list", choices=("list", "ack", "silence"))
    parser.add_argument("what", nargs="?", metavar="ID", help="an alert such as al-31; for silence a rule such as ar-3, or all")
    parser.add_argument("--all", action="store_true", help="list: also those that are over")
    parser.add_argument("--note", default="", help="ack: what is done about it")
    parser.add_argument("--minutes", type=int, default=60, help="silence: for so long (default: 60)")
    parser.add_argument("--reason", default="", help="silence: why")
    parser.add_argument("-n", "--limit", type=int, default=50, help="list: at most so many (default: 50)")
    asked = parser.parse_args(arguments)
    place = console_meant()
    if asked.action != "list":
        if not asked.what:
            parser.error("name an alert or a rule")
        body = {"rule": None if asked.what == "all" else asked.what, "minutes": asked.minutes, "reason": asked.reason}
        told = (
            place.post(f"/alerts/{asked.what}/acknowledge", {"note": asked.note}) if asked.action == "ack" else place.post("/alerts/silences", body)
        )
        if asked.json:
            return print_json(told)
        print(f"{told['id']}: {told['state'] if asked.action == 'ack' else 'silenced until ' + told['until']}.")
        return DONE
    rows = list(place.pages("/alerts", asked.limit, open=None if asked.all else "yes"))
    if asked.json:
        return print_json({"items": rows})
    heads = ("ALERT", "SEVERITY", "STATE", "SINCE", "NAME", "OF", "NOW", "LIMIT")
    lines = [
        (
            row["id"],
            row["severity"],
            row["state"],
            ago(row["since"]),
            plain(row["name"]),
            plain(row["subject"] or "fleet"),
            f"{row['value']:g}",
            f"{row['threshold']:g}",
        )
        for row in rows
    ]
    print("\n".join(table(heads, lines)) if lines else "No alert fires.")
    return DONE
