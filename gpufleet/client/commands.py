"""The commands of those whose jobs run on the fleet, from `gpufleet login` to `gpufleet scenario`: a console's API at a terminal."""

import argparse
import getpass
import itertools
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from gpufleet.client import AWAY, DONE, JOB_FAILED, NOT_ALLOWED, NOT_THERE, REFUSED, USAGE, ClientError
from gpufleet.client.arrays import array_shown, array_steered, arrays_blame, foreseen_lines, foreseen_of, is_array
from gpufleet.client.calls import Console
from gpufleet.client.description import as_yaml, changes, described, documents, seconds
from gpufleet.client.launched import launch_facts, seats_told, standing_facts
from gpufleet.client.place import URL, Place, clean_url, keep, place_now
from gpufleet.client.words import ago, coloured, due_in_words, exact, gpus, gpus_told, lasting, plain, plural, table

ENDED = ("completed", "failed", "cancelled")
LOOK_AGAIN_SECONDS = 1.0
# Who waits for a job waits so long for a console that does not answer, and asks it so often.
AWAY_SECONDS, AGAIN_SECONDS = 900.0, 10.0
MOST_IN_A_BATCH = 500
OF_NODES = ("hp-", "dp-")  # how ids of planned changes of nodes begin; the second are of planned drains from before

Command = Callable[[Sequence[str]], int]


class Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ClientError(USAGE, f"{message[:1].upper()}{message[1:]}.", tuple(self.format_usage().strip().splitlines()))


def ends_well(command: Command) -> Command:
    """Faults as one line on standard error and a documented exit status; a closed pipe and Ctrl-C end quietly."""

    @wraps(command)
    def run(arguments: Sequence[str]) -> int:
        try:
            return command(arguments)
        except ClientError as fault:
            print(plain(fault), file=sys.stderr)
            for detail in fault.details:
                print(f"  {plain(detail)}", file=sys.stderr)
            return fault.status
        except BrokenPipeError:
            sys.stderr.close()
            return DONE
        except KeyboardInterrupt:
            return 130

    return run


def parser_of(name: str, text: str | None, *, jobs: str = "", as_json: bool = True) -> Arguments:
    parser = Arguments(prog=f"gpufleet {name}", description=text, allow_abbrev=False)
    if as_json:
        parser.add_argument("--json", action="store_true", help="what the API answers, for programs")
    if jobs == "+":
        parser.add_argument("jobs", metavar="JOB", nargs="+", help="public ids, such as j-17")
    elif jobs:
        parser.add_argument("job", metavar="JOB", help="public id, such as j-17")
    return parser


def print_json(value: Any) -> int:
    print(json.dumps(value, indent=2, ensure_ascii=False))
    return DONE


def console_meant() -> Console:
    return Console(place_now())


@ends_well
def login(arguments: Sequence[str]) -> int:
    """Keep a console's address and a service token, which is asked for or read from standard input."""
    parser = parser_of("login", login.__doc__, as_json=False)
    parser.add_argument("url", nargs="?", help=f"such as https://console.example.org (default: {URL})")
    asked = parser.parse_args(arguments)
    url = clean_url(asked.url or os.environ.get(URL, ""))
    if not url:
        parser.error("the address of the console is missing")
    token = (getpass.getpass("Service token (it is not shown): ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ClientError(USAGE, "Not a valid token. Create one on the Tokens page of the console; it begins with gf_.")
    place = Place(url, token)
    me = Console(place).get("/me")
    path = keep(place)
    print(f"Signed in at {url} as {plain(me['username'])}. Kept in {path}.")
    return DONE


@ends_well
def submit(arguments: Sequence[str]) -> int:
    """Send jobs, from a YAML or JSON file (- reads standard input; several documents are several jobs), or from flags."""
    parser = parser_of("submit", submit.__doc__)
    parser.add_argument("file", nargs="?", help="the description; flags change it")
    parser.add_argument("--draft", action="store_true", help="keep it as a draft, which gpufleet enqueue submits")
    parser.add_argument("--dry-run", action="store_true", help="check it and say what would be submitted, without submitting")
    parser.add_argument("--wait", action="store_true", help="stay until every job has ended; the exit status says how")
    parser.add_argument("--key", default="", help="idempotency key: the same key never submits twice (default: a fresh one)")
    shape = parser.add_argument_group("the job")
    shape.add_argument("--template", help="what it begins with, such as notebook or org/nlp:serve; the description changes it")
    shape.add_argument("--name")
    shape.add_argument("--quota", help="path of the team's quota, such as org/nlp")
    shape.add_argument("--class", dest="job_class", choices=("inference", "interactive", "batch"))
    shape.add_argument("--priority", type=int)
    shape.add_argument("--preemptible", metavar="WHETHER", help="true, false or when_borrowed: whether the job can be preempted")
    shape.add_argument("--gpus", type=int, help="whole GPUs of each worker")
    shape.add_argument("--workers", help="how many, or least-most for an elastic job: 4 or 2-8")
    shape.add_argument("--type", dest="gpu_types", action="append", help="GPU type it accepts; may be repeated")
    shape.add_argument("--speed", dest="speeds", action="append", metavar="TYPE=FACTOR", help="relative speed on a type; 0: it can't run there")
    shape.add_argument("--type-choice", choices=("fastest", "cheapest", "stated"), help="which of the accepted types it gets first")
    shape.add_argument("--mig", help="MIG profile instead of whole GPUs")
    shape.add_argument("--estimate", help="how long it will run: 90m, 2h, 1d, or seconds")
    shape.add_argument("--limit", help="ended after so long")
    shape.add_argument("--not-before", metavar="TIME", help="waits until then: a time with its zone, such as 2026-11-24T22:00:00+01:00")
    shape.add_argument("--deadline", metavar="TIME", help="has failed when it has not started by then")
    shape.add_argument("--defer", choices=("price", "carbon"), help="to the hour before its deadline with the best energy; needs --estimate")
    shape.add_argument("--label", dest="labels", action="append", help="key=value; may be repeated")
    shape.add_argument("--env", action="append", help="KEY=value for its processes; may be repeated")
    shape.add_argument(
        "--secret", dest="secrets", action="append", metavar="VARIABLE=NAME", help="a secret that the operator keeps, by its name; may be repeated"
    )
    shape.add_argument("--image", help="what it runs in, such as registry/name:tag; only where the back-end runs images")
    shape.add_argument("--array", type=int, metavar="COUNT", help="so many jobs alike, each with its GPUFLEET_ARRAY_INDEX")
    shape.add_argument(
        "--param", dest="params", action="append", metavar="NAME=V1,V2", help="a job for each value; may be repeated: for each combination of values"
    )
    shape.add_argument("--zip", action="store_true", help="with several --param: first values together, second values together, and so on")
    shape.add_argument("--workdir", help="folder in which it starts")
    shape.add_argument("--after", action="append", metavar="JOB", help="wait until that job has completed; may be repeated")
    words = list(arguments)
    command = words[words.index("--") + 1 :] if "--" in words else []
    asked = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    if not (asked.file or asked.name or asked.template):
        parser.error("name a file or a template, or describe the job with --name and the other flags")
    found = [described(document, asked, command) for document in (documents(asked.file) if asked.file else [{}])]
    console = console_meant()
    verdicts = _sent(console, found, asked.key, dry_run=asked.dry_run)
    jobs = [job for verdict in verdicts for job in verdict["jobs"]]
    refused = [(number, verdict["errors"]) for number, verdict in enumerate(verdicts, 1) if verdict["errors"]]
    if asked.json:
        print_json({"jobs": jobs, "verdicts": verdicts})
    elif asked.dry_run:
        for verdict in verdicts:
            if not verdict["errors"]:
                print(f"Valid: would submit {plural(verdict['count'], 'job')} of {gpus_told(verdict['gpus_milli'])}.")
    else:
        for job in jobs:
            print(f"{job['id']}  {plain(job['name'])}  {coloured(job['state'])}")
        for array in dict.fromkeys(job["array"] for job in jobs if job["array"]):
            print(f"{array} is the whole array: gpufleet show {array} says how it fares.", file=sys.stderr)
    for number, errors in refused:
        print(f"Document {number} was refused:", file=sys.stderr)
        for error in errors:
            print(f"  {plain(error['path'])}: {plain(error['message'])}", file=sys.stderr)
    ended = _wait_for(console, [job["id"] for job in jobs]) if asked.wait and not asked.dry_run else DONE
    return REFUSED if refused else ended


def _sent(console: Console, found: Sequence[dict[str, Any]], key: str, *, dry_run: bool) -> list[dict[str, Any]]:
    """A verdict for each description. A single one is a request of its own; of several, one that is refused keeps none of the others back."""
    name = key or uuid.uuid4().hex
    if len(found) == 1:
        told = console.post("/jobs", found[0], key="" if dry_run else name, dry_run=dry_run or None)
        return [{**told, "errors": []}]
    verdicts = []
    for first in range(0, len(found), MOST_IN_A_BATCH):
        wishes = [{"key": f"{name}-{first + number}", "description": one} for number, one in enumerate(found[first : first + MOST_IN_A_BATCH])]
        verdicts += console.post("/submissions", {"jobs": wishes}, repeatable=True, dry_run=dry_run or None)["verdicts"]
    return verdicts


def _wait_for(console: Console, jobs: Sequence[str]) -> int:
    failed = False
    for name in jobs:
        before = ""
        while True:
            job = _looked_at(console, name)
            if job["state"] != before:
                before = job["state"]
                print(f"{name}  {coloured(before, sys.stderr)}  {plain(job['now']['text'])}".rstrip(), file=sys.stderr)
            if before in ENDED:
                failed |= before != "completed"
                break
            time.sleep(LOOK_AGAIN_SECONDS)
    return JOB_FAILED if failed else DONE


def _looked_at(console: Console, name: str) -> Any:
    """A job that is waited for, perhaps for days: a console that restarts meanwhile does not end the wait."""
    since = time.monotonic()
    while True:
        try:
            return console.get(f"/jobs/{name}")
        except ClientError as fault:
            if fault.status != AWAY or time.monotonic() - since > AWAY_SECONDS:
                raise
            print(f"{plain(fault)} Retrying.", file=sys.stderr)
            time.sleep(AGAIN_SECONDS)


@ends_well
def ls(arguments: Sequence[str]) -> int:
    """List jobs that you may see, the newest first."""
    parser = parser_of("ls", ls.__doc__)
    parser.add_argument("--phase", choices=("waiting", "holding", "ended"), action="append", help="may be repeated (default: waiting and holding)")
    parser.add_argument("--state", action="append", help="may be repeated")
    parser.add_argument("--team", help="path of a quota, with all below it")
    parser.add_argument("--owner", help="user name")
    parser.add_argument("--mine", action="store_true", help="only my own")
    parser.add_argument("--type", help="GPU type that it names, or sits on")
    parser.add_argument("--label", action="append", metavar="KEY[=VALUE]", help="may be repeated; all must be there")
    parser.add_argument("--cost-centre", help="cost centre to charge")
    parser.add_argument("--blocker", action="append", metavar="CODE", help="waiting jobs with this reason, such as limit; may be repeated")
    parser.add_argument("--template", metavar="NAME", help="what it began with: notebook, org/nlp:serve, or org/nlp:serve@3")
    parser.add_argument("--array", help="id of an array, such as a-3")
    parser.add_argument("--all", action="store_true", help="ended ones too")
    parser.add_argument("-q", "--search", default="", help="words in name or id")
    parser.add_argument("-n", "--limit", type=int, default=50, help="at most so many (default: 50)")
    parser.add_argument("--ids", action="store_true", help="only the ids, one a line")
    parser.add_argument("--view", metavar="NAME", help="a saved view, your own or one that is shared; other flags come on top")
    asked = parser.parse_args(arguments)
    console = console_meant()
    viewed = _viewed(console, asked.view) if asked.view else {}
    owner = console.get("/me")["username"] if asked.mine else asked.owner
    phase = asked.phase or ([] if asked.all or asked.state or asked.view or asked.blocker else ["waiting", "holding"])
    said = {"phase": phase, "state": asked.state, "team": asked.team, "owner": owner, "q": asked.search, "type": asked.type, "array": asked.array}
    said |= {
        "label": [f'"{label}"' for label in asked.label or ()],
        "cost_centre": asked.cost_centre,
        "template": asked.template,
        "blocker": asked.blocker,
    }
    rows = list(console.pages("/jobs", asked.limit, **viewed | {key: value for key, value in said.items() if value}))
    if asked.json:
        return print_json({"items": rows})
    if asked.ids:
        print("".join(f"{row['id']}\n" for row in rows), end="")
        return DONE
    if not rows:
        print("No job matches.", file=sys.stderr)
        return DONE
    heads = ("JOB", "NAME", "STATE", "SINCE", "GPUS", "CLASS", "TEAM", "NOW")
    lines = [
        (row["id"], plain(row["name"]), row["state"], ago(row["since"]), gpus(row["gpus_milli"]), row["class"], plain(row["quota"]), now_of(row))
        for row in rows
    ]
    print("\n".join(table(heads, lines)))
    return DONE


def _viewed(console: Console, name: str) -> dict[str, Any]:
    """The parameters of a saved view. One's own are told first, so they win over those of others with the same name."""
    views = list(console.pages("/jobs/views", 2000))
    for view in views:
        if view["name"].casefold() == name.casefold():
            return {key: value for key, value in view["parameters"].items() if key != "size"}
    known = ", ".join(plain(view["name"]) for view in views)
    raise ClientError(NOT_THERE, f"There is no view {name}.", (f"There are: {known}.",) if known else ())


def now_of(row: dict[str, Any]) -> str:
    now = row["now"]
    if now["text"]:
        more = f" (+{now['more']} more)" if now["more"] else ""
        starts = now["before"] == "starts"
        when = due_in_words(now["at"]) if starts else ago(now["at"])
        before = "" if starts and when.startswith("late") else f"{now['before']} "
        return plain(now["text"]) + more + (f" · {before}{when}" if now["at"] else "")
    nodes = row["nodes"]
    return plain(", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""))


def used_of(usage: Mapping[str, Any]) -> str:
    """All attempts' GPU-hours and cost, and how much of what the last one holds or held computes."""
    said = [f"{usage['gpu_hours']:,.2f} GPU-hours"]
    said += [f"{usage['cost_micros'] / 1_000_000:,.2f} {plain(usage['currency'])}"] if usage["cost_micros"] is not None else []
    held = usage["now"]
    if held and held["busy_percent"] is not None:
        said.append(f"{gpus(held['busy_milli'])} of {gpus_told(held['busy_milli'] + held['idle_milli'])} busy now ({held['busy_percent']}%)")
    said += [f"{usage['mean_percent']}% busy in the mean of attempt {usage['attempt']}"] if usage["mean_percent"] is not None else []
    return ", ".join(said)


LIFE = (
    ("waited_for_quota_s", "waited {} for quota"),
    ("waited_for_gpus_s", "waited {} for GPUs"),
    ("aside_s", "held or not due for {}"),
    ("deferred_s", "deferred for {}"),
    ("starting_s", "started up in {}"),
    ("running_s", "ran {}"),
)


def life_told(life: Mapping[str, Any]) -> str:
    """Where the time since submission went."""
    return ", ".join(words.format(lasting(life[key])) for key, words in LIFE if life[key] >= 1)


@ends_well
def show(arguments: Sequence[str]) -> int:
    """Show a job with its attempts and where its workers sit, or an array (a-3) as a whole."""
    parser = parser_of("show", show.__doc__, jobs="1")
    parser.add_argument("--yaml", action="store_true", help="as it could be submitted again; for people who may steer it")
    asked = parser.parse_args(arguments)
    console = console_meant()
    if asked.yaml:
        if asked.json or is_array(asked.job):
            parser.error("--yaml is of one job, and without --json")
        print(as_yaml(console.get(f"/jobs/{asked.job}/description")), end="")
        return DONE
    if is_array(asked.job):
        return array_shown(console, asked.job, as_json=asked.json)
    job = console.get(f"/jobs/{asked.job}")
    if asked.json:
        return print_json(job)
    usage = console.get(f"/jobs/{asked.job}/usage") if job["attempts"] else None
    put_out = console.get(f"/jobs/{asked.job}/evictions")["items"] if job["attempts"] else []
    print(f"{job['id']}  {plain(job['name'])}")
    facts = [
        ("State", f"{coloured(job['state'])} since {exact(job['since'])}"),
        ("Now", now_of(job)),
        ("Team", f"{plain(job['quota'])}, by {plain(job['owner'] or '-')}"),
        ("Class", f"{job['class']}, priority {job['priority']}"),
        ("Array", f"{job['array']}, element {job['array_index']}" if job["array"] else ""),
        (
            "GPUs",
            gpus(job["gpus_milli"])
            + (f", {gpus(job['least_milli'])} to {gpus(job['most_milli'])}" if job["most_milli"] > job["least_milli"] else ""),
        ),
        ("Time", life_told(job["life"])),
        ("Used", used_of(usage) if usage else ""),
        *(standing_facts(usage) if usage else ()),
        ("Submitted", exact(job["submitted_at"])),
        ("Estimate", lasting(job["estimate_s"]) if job["estimate_s"] else ""),
        ("Limit", lasting(job["limit_s"]) if job["limit_s"] else ""),
        ("Labels", plain(" ".join(f"{key}={value}" for key, value in job["labels"].items()))),
        ("Cost centre", plain(job["cost_centre"])),
    ]
    facts += [("Parameters", plain(" ".join(f"{key}={value}" for key, value in (job["parameters"] or {}).items())))]
    made = job["template_ref"] or (f"{job['template']}, version {job['template_version']}" if job["template"] else "")
    facts += [("Template", plain(made))]
    if speeds := job["spec"].get("throughput"):
        whose = f", number {job['template_speeds']} of its template" if job["template_speeds"] else ""
        facts += [("Speeds", plain(", ".join(f"{name} {speed:g}" for name, speed in speeds.items()) + whose))]
    facts += [("Type choice", job["spec"]["type_choice"])] if job["spec"].get("type_choice") else []
    facts += [("Schedule", f"{job['schedule']}, due {exact(job['due_at'])}")] if job["schedule"] else []
    facts += [("Waits for", ", ".join(job["waits_for"]))] if job["waits_for"] else []
    facts += [(name, exact(job[key])) for name, key in (("Not before", "not_before"), ("Deadline", "deadline"), ("Ended", "ended_at")) if job[key]]
    if (deferral := job["deferral"]) is not None:
        told = f"to {exact(deferral['to'])}: {deferral['text']}" if deferral["to"] else deferral["text"]
        facts += [("Deferred", plain(told))]
    facts += launch_facts(job["launch"])
    for name, value in facts:
        if value:
            print(f"  {name:<11} {value}")
    for run in job["attempts"]:
        print(f"Attempt {run['number']}: {run['outcome'] or 'going on'}, from {exact(run['started_at'])}", end="")
        print(f" to {exact(run['ended_at'])}" if run["ended_at"] else "", end="")
        print(f", exit code {run['exit_code']}" if run["exit_code"] is not None else "")
        if run["cause"]:
            print(f"  {plain(run['cause'])}")
        for line in seats_told(run["workers"]):
            print(f"  {line}")
    for one in put_out:
        print(f"{exact(one['at'])}: {plain(one['text'])}")
    for saved in job["checkpoints"]:
        print(f"Checkpoint at step {saved['step']}: {saved['state']}, {saved['shards']} of {saved['shards_expected']} shards")
    return DONE


@ends_well
def scenario(arguments: Sequence[str]) -> int:
    """Print what a plan was made from, or would be made from now, as a file for gpufleet plan."""
    parser = parser_of("scenario", scenario.__doc__, as_json=False)
    parser.add_argument("plan", nargs="?", type=int, metavar="PLAN", help="number of a plan, as the page Scheduler lists them (default: now)")
    parser.add_argument("--last", metavar="LENGTH", help="one line for each plan of so long whose scenario is kept, the oldest first: 3h, 20m")
    asked = parser.parse_args(arguments)
    if asked.last is None:
        path = "/scheduler/scenario" if asked.plan is None else f"/scheduler/plans/{asked.plan}/scenario"
        return _print_line(console_meant().get(path))
    if asked.plan is not None:
        parser.error("name a plan, or say --last, not both")
    console, since = console_meant(), time.time() - seconds(asked.last)
    late = itertools.takewhile(lambda row: datetime.fromisoformat(row["at"]).timestamp() >= since, console.pages("/scheduler/plans", sys.maxsize))
    for row in reversed(list(late)):
        try:
            _print_line(console.get(f"/scheduler/plans/{row['id']}/scenario"))
        except ClientError as fault:
            if fault.status != NOT_THERE:  # most plans that decided nothing are kept without one
                raise
    return DONE


def _print_line(value: Any) -> int:
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return DONE


def _steer(name: str, text: str, said: str) -> Command:
    @ends_well
    def command(arguments: Sequence[str]) -> int:
        parser = parser_of(name, text, jobs="+")
        parser.add_argument("--reason", default="", help="kept in the job's history and in the audit log")
        asked = parser.parse_args(arguments)
        console, done, worst = console_meant(), [], DONE
        for job in asked.jobs:
            try:
                done.append(console.post(f"/jobs/{job}/{name}", {"reason": asked.reason}))
            except ClientError as fault:
                # The others are still steered; the first fault decides how the program ends.
                if fault.status not in (REFUSED, NOT_THERE):
                    raise
                worst = worst or fault.status
                print("\n".join((f"{job}: {plain(fault)}", *(f"  {plain(detail)}" for detail in fault.details))), file=sys.stderr)
        if asked.json:
            print_json({"jobs": done})
        else:
            for row in done:
                print(f"{row['id']}  {coloured(row['state'])}  {said if row['state'] != 'cancelled' else ''}".rstrip())
        return worst

    command.__doc__ = text
    return command


def _many(name: str, text: str, said: str) -> Command:
    @ends_well
    def command(arguments: Sequence[str]) -> int:
        parser = parser_of(name, text)
        if name == "priority":
            parser.add_argument("priority", type=int, metavar="PRIORITY", help="a whole number; higher goes first in its class and queue")
        parser.add_argument("jobs", metavar="JOB", nargs="*", help="public ids, such as j-17, or of a whole array: a-3")
        parser.add_argument("--matching", action="append", metavar="KEY=VALUE", help="instead: those of the list, such as team=org/nlp; 500 at most")
        parser.add_argument("--dry-run", action="store_true", help="say what would become of each, and change nothing")
        parser.add_argument("--yes", action="store_true", help="with --matching: don't ask first")
        parser.add_argument("--reason", default="", help="kept in the jobs' history and in the audit log")
        parser.add_argument("--begins", metavar="TIME", help="plan it for then, such as 2026-11-20T18:00:00Z; without, at once")
        asked = parser.parse_args(arguments)
        if bool(asked.jobs) == bool(asked.matching):
            parser.error("name jobs, or say with --matching which are meant, not both")
        body = {"action": name, "reason": asked.reason} | ({"priority": asked.priority} if name == "priority" else {})
        body |= {"begins": asked.begins} if asked.begins else {}
        console = console_meant()
        arrays = [one for one in asked.jobs if is_array(one)]
        asked.jobs = [one for one in asked.jobs if not is_array(one)]
        steered = [array_steered(console, one, body, dry_run=asked.dry_run, quiet=asked.json) for one in arrays]
        if arrays and not asked.jobs:
            return print_json({"arrays": steered}) if asked.json else arrays_blame(steered)
        left: list[dict[str, Any]] = []
        if asked.matching and not asked.dry_run and not asked.yes:
            changing, left = _shown(console, body | _matching(asked.matching), parser)
            if changing and not _agreed():
                return DONE
            seen = [{"id": row["id"]} | ({} if asked.begins else {"revision": row["revision"]}) for row in changing]
            groups = [{"jobs": seen}] if changing else []
        elif asked.matching:
            groups = [_matching(asked.matching)]
        else:
            named = [{"id": job} for job in asked.jobs]
            groups = [{"jobs": named[first : first + MOST_IN_A_BATCH]} for first in range(0, len(named), MOST_IN_A_BATCH)]
        answers = [
            console.post("/jobs/bulk", body | meant, key="" if asked.dry_run else uuid.uuid4().hex, dry_run=asked.dry_run or None) for meant in groups
        ]
        plans = [answer["planned"] for answer in answers if answer["planned"]]
        parts = {job for plan in plans for job in plan["jobs"]}
        verdicts = [verdict for answer in answers for verdict in answer["verdicts"] if verdict["id"] not in parts] + left
        if asked.json:
            more = {"previews": [foreseen_of(answer) for answer in answers]} if asked.dry_run else {}
            more |= {"arrays": steered} if arrays else {}
            more |= {"planned": plans} if plans else {}
            print_json({"batches": [answer["batch"] for answer in answers if answer["batch"]], "jobs": verdicts} | more)
        elif asked.dry_run:
            _print_preview(answers)
        elif asked.begins:
            print("".join(f"Planned {plan['id']}: {plural(len(plan['jobs']), 'job')}, {exact(plan['begins'])}\n" for plan in plans), end="")
        else:
            for verdict in verdicts:
                if verdict["effect"] in ("changes", "same"):
                    print(f"{verdict['id']}  {coloured(verdict['state'])}  {said if verdict['state'] != 'cancelled' else ''}".rstrip())
        return _blame(verdicts) or arrays_blame(steered)

    command.__doc__ = text
    return command


@ends_well
def planned(arguments: Sequence[str]) -> int:
    """List planned changes of jobs, or with --nodes those of nodes, those that begin next first. Or call some off."""
    parser = parser_of("planned", planned.__doc__)
    parser.add_argument("--job", default="", metavar="JOB", help="only those of this job; with --call-off, only for it")
    parser.add_argument("--nodes", action="store_true", help="those of nodes: another health, such as a drain")
    parser.add_argument(
        "--call-off", action="append", metavar="ID", help="a planned change that is not to begin, such as pc-3 or hp-4; may be repeated"
    )
    parser.add_argument("--reason", default="", help="kept in the audit log, with --call-off")
    asked = parser.parse_args(arguments)
    console = console_meant()
    if asked.call_off:
        for name in asked.call_off:
            if name.startswith(OF_NODES):
                console.delete(f"/nodes/{_node_planned(console, name)}/planned-health", plan=name, reason=asked.reason or None)
            else:
                console.delete(f"/jobs/planned-changes/{name}", job=asked.job or None, reason=asked.reason or None)
        if asked.json:
            return print_json({"called_off": asked.call_off})
        print("".join(f"{plain(name)}  called off\n" for name in asked.call_off), end="")
        return DONE
    if asked.nodes:
        return _planned_of_nodes(console, as_json=asked.json)
    told = console.get("/jobs/planned-changes", job=asked.job or None)
    if asked.json:
        return print_json(told)
    rows = [
        (row["id"], exact(row["begins"]), _action_of(row), _jobs_of(row), plain(row["author"]), plain(row["reason"]) or "-") for row in told["items"]
    ]
    print("\n".join(table(("ID", "BEGINS", "ACTION", "JOBS", "AUTHOR", "REASON"), rows)) if rows else "No change is planned.")
    return DONE


def _node_planned(console: Console, plan: str) -> str:
    """The node of a planned change, by the id of that."""
    for row in console.get("/nodes/planned-health")["items"]:
        if row["id"] == plan:
            return str(row["node"])
    raise ClientError(NOT_THERE, f"There is no planned change {plan}.")


def _planned_of_nodes(console: Console, *, as_json: bool) -> int:
    told = console.get("/nodes/planned-health")
    if as_json:
        return print_json(told)
    heads = ("ID", "BEGINS", "NODE", "BECOMES", "AUTHOR", "REASON")
    rows = [
        (row["id"], exact(row["begins"]), plain(f"{row['cluster']}/{row['node_name']}"), row["to"], plain(row["author"]), plain(row["reason"]))
        for row in told["items"]
    ]
    print("\n".join(table(heads, rows)) if rows else "No change is planned.")
    return DONE


def _action_of(row: dict[str, Any]) -> str:
    return str(row["action"]) if row["priority"] is None else f"{row['action']} {row['priority']}"


def _jobs_of(row: dict[str, Any]) -> str:
    """The first by name, and how many there are."""
    count = len(row["jobs"]) + row["others"]
    return " ".join(row["jobs"][:3]) + (f" ({plural(count, 'job')})" if count > 3 or row["others"] else "")


@ends_well
def change(arguments: Sequence[str]) -> int:
    """Change what was said of a job: its name, priority, limits, times, labels, or how many workers it has."""
    parser = parser_of("change", change.__doc__, jobs="1")
    parser.add_argument("--name")
    parser.add_argument("--priority", type=int)
    parser.add_argument("--estimate", help="how long it will run: 90m, 2h, 1d, or seconds; none takes it away, as it does of what follows")
    parser.add_argument("--limit", help="ended after so long, counted from the start of the run that goes on")
    parser.add_argument("--not-before", metavar="TIME", help="waits until then: a time with its zone")
    parser.add_argument("--deadline", metavar="TIME", help="has failed when it has not started by then")
    parser.add_argument("--defer", choices=("price", "carbon", "none"), help="to the hour before its deadline with the best energy")
    parser.add_argument("--retries", type=int, help="how often it is tried again after a failure of its own")
    parser.add_argument("--label", dest="labels", action="append", help="key=value, beside those that it has; may be repeated")
    parser.add_argument("--workers", action="append", metavar="ROLE=COUNT", help="worker=4, or worker=2-8 for least and most; may be repeated")
    parser.add_argument("--cost-centre", help="cost centre to charge")
    parser.add_argument("--reason", help="kept in the job's history and in the audit log")
    parser.add_argument("--dry-run", action="store_true", help="say what it would do and cost, and change nothing")
    asked = parser.parse_args(arguments)
    console, path = console_meant(), f"/jobs/{asked.job}"
    stated = changes(asked)
    if not stated:
        parser.error("say what is to be changed")
    read = console.get(path)
    if asked.labels:
        stated["labels"] = {**read["labels"], **stated["labels"]}
    if asked.dry_run:
        found = console.post(f"{path}/preview", stated, repeatable=True)
        if asked.json:
            return print_json(found)
        print("\n".join(foreseen_lines(found)))
        return DONE
    told = console.patch(path, stated | ({"reason": asked.reason} if asked.reason else {}), revision=read["revision"])
    if asked.json:
        return print_json(told)
    print(f"{told['id']}  {coloured(told['state'])}  changed")
    return DONE


BLAME = {"unknown": NOT_THERE, "not_allowed": NOT_ALLOWED, "refused": REFUSED, "stale": REFUSED}


def _blame(verdicts: Sequence[dict[str, Any]]) -> int:
    """Names what was left alone; the first of them decides how the program ends."""
    left = [verdict for verdict in verdicts if verdict["effect"] in BLAME]
    for verdict in left:
        print(f"{plain(verdict['id'])}: {plain(verdict['detail'])}", file=sys.stderr)
    return BLAME[left[0]["effect"]] if left else DONE


def _matching(words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ClientError(USAGE, f"--matching {word}: write key=value, as the list's filters have it.")
        found.setdefault(key, []).append(value)
    return {"matching": found}


def _shown(console: Console, body: dict[str, Any], parser: Arguments) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Prints what would happen; the jobs that would change, as they were read, and the others."""
    if not sys.stdin.isatty():
        parser.error("say --yes to do it to all that match, or --dry-run to see what would happen")
    answer = console.post("/jobs/bulk", body, dry_run=True)
    _print_preview([answer])
    # What is planned concerns all that have not ended: they are looked at again when it begins.
    wanted = ("changes", "same", "refused") if body.get("begins") else ("changes",)
    changing = [row for row in answer["verdicts"] if row["effect"] in wanted and (row["effect"] == "changes" or row["state"] not in ENDED)]
    return changing, [row for row in answer["verdicts"] if row not in changing]


def _agreed() -> bool:
    return input("Do it? [y/N] ").strip().lower() in ("y", "yes")


def _print_preview(answers: Sequence[dict[str, Any]]) -> None:
    rows = [(row["id"], plain(row["name"]), row["state"], row["effect"], plain(row["detail"])) for answer in answers for row in answer["verdicts"]]
    print("\n".join(table(("JOB", "NAME", "STATE", "EFFECT", "WHAT HAPPENS"), rows)))
    for answer in answers:
        changing = answer["counts"].get("changes", 0)
        print(f"{changing} of {len(answer['verdicts'])} would change{'; more match' if answer['more'] else ''}.")
        print("\n".join(foreseen_lines(answer)))


cancel = _many("cancel", "Cancel jobs. Running jobs get their grace period to save their work.", "is being stopped")
hold = _many("hold", "Hold waiting jobs; they keep their place in the queue.", "held back")
release = _many("release", "Release held jobs.", "released")
priority = _many("priority", "Change the priority of jobs.", "has its new priority")
checkpoint = _many("checkpoint", "Have running jobs save their work now, and go on.", "saving its work")
enqueue = _steer("enqueue", "Put drafts in the queue. They are checked as submissions are.", "submitted")
restart = _steer("restart", "Restart jobs. Running jobs save their work and queue again; ended jobs are submitted again.", "restarts")
