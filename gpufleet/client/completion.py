"""`gpufleet completion bash|zsh|fish`: a script for the shell, from the very table of commands."""

import argparse
from collections.abc import Sequence

from gpufleet.client import DONE
from gpufleet.client.commands import Arguments, ends_well
from gpufleet.overview import ours

BASH = """_gpufleet() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
        return
    fi
    [ "$command" != help ] || COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    case "$command ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
        *" --team"|*" --quota") [ -n "$GPUFLEET_NO_JOBS" ] || COMPREPLY=($(compgen -W "$(gpufleet quota --paths 2>/dev/null)" -- "$word")); return;;
        *" --after") [ -n "$GPUFLEET_NO_JOBS" ] || COMPREPLY=($(compgen -W "$(gpufleet ls --ids 2>/dev/null)" -- "$word")); return;;
    esac
    case "$command" in
{cases}
    esac
    case "$word" in
        s-*) [ "$command" != schedule ] || COMPREPLY+=($(compgen -W "$(gpufleet schedule ls --ids 2>/dev/null)" -- "$word"));;
        j-*|"") [ -n "$GPUFLEET_NO_JOBS" ] || case " {of_jobs} " in
            *" $command "*) COMPREPLY+=($(compgen -W "$(gpufleet ls --ids 2>/dev/null)" -- "$word"));;
        esac;;
    esac
    [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -F _gpufleet gpufleet
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
OF_JOBS = (
    *("show", "why", "logs", "connect", "change", "cancel", "hold", "release", "priority", "checkpoint", "restart", "enqueue"),
    *("scale", "replace"),
)
WORDS = {
    "bench": "api chargeback console engine loop predictions quotas simulate slurm telemetry --json --case",
    "change": "--json --name --priority --estimate --limit --not-before --deadline --defer --retries --label --workers --cost-centre --dry-run"
    " --reason",
    "completion": "bash zsh fish",
    "fleet": "--json --nodes --limit",
    "fragmentation": "--json --type --plan --apply --reason",
    "gap": "show rows --json --by --type --cause --team --class --pool --limit",
    "idle": "list show notify reclaim snooze --json --all --team --since --reason --hold --hours --limit",
    "health": "now incidents show --json --all --limit",
    "alerts": "list ack silence --json --all --note --minutes --reason --limit",
    "logs": "--follow --attempt --role --index --tail --search --context --json",
    "ls": "--json --phase --state --team --owner --mine --type --label --cost-centre --blocker --template --array --all --search --limit --ids"
    " --view",
    "plan": "--explain --jsonl",
    "queue": "--json --team --class --owner --type --label --blocker --search --limit",
    "quota": "changes change week set export import propose approve reject withdraw schedule apply rebase allow revert"
    " --json --paths --state --team --limit --type --guaranteed --weight --priority --preempt-min-runtime --reclaim-min-runtime --default-class"
    " --rule --reason --dry-run --format --archive-missing --at --cancel",
    "reserve": "ls add show windows floors approve deny cancel end --json --name --team --class --type --gpus --nodes --block --from --until --to"
    " --rule --zone --notice --lead --decay --lend --purpose --dry-run --state --limit --reason",
    "ledger": "--json --team --job --type --class --from --to --sums --csv --limit",
    "chargeback": "--month --from --to --format --by --users --team --output --reconcile --reference --currency --fees --basis --hours"
    " --unit-price --note --json",
    "budget": "ls add show change except rm --json --name --team --amount --unit --period --from --until --zone --type --warn --stop"
    " --wind-down --more --reason",
    "schedule": "ls add show pause resume run rm --json --cron --zone --name --overlap --catch-up --start-within --from --until --state --team"
    " --owner --search --limit --ids --reason",
    "submit": "--json --draft --dry-run --wait --key --template --name --quota --class --priority --preemptible --gpus --workers --type --speed --mig"
    " --estimate --limit --not-before --deadline --defer --label --env --secret --image --array --param --zip --workdir --after",
    "trace": "gavel helios openb own philly --nodes --cpus --limit --days --data-dir --out",
    "top": "--json --limit --team --once",
    "webhooks": "ls add pause resume test rm deliveries redeliver --json --state --limit --quota --on --reason --no-wait",
    "notices": "ls read set test log --json --unread --limit --zone --quiet --quiet-rule --urgent",
    **dict.fromkeys(("enqueue", "restart"), "--json --reason"),
    **dict.fromkeys(("cancel", "hold", "release", "priority", "checkpoint"), "--json --matching --dry-run --yes --reason --begins"),
    "planned": "--json --job --nodes --call-off --reason",
    "mark": "healthy suspect draining drained repairing burn-in down --json --reason --begins --dry-run",
    "show": "--json --yaml",
    "spare": "--json --back --reason",
    "boundaries": "--json --state --none --reason",
    "why": "--json",
    "connect": "--json",
    "scale": "--json --role --follow --no-follow --cooldown --reason --dry-run",
    "replace": "--json --role --max-unavailable --within --reason --apply --dry-run --stop",
}
# By command and option, what may follow it.
VALUES = {
    "boundaries --state": "cores mig",
    "fleet --nodes": "sick all",
    "gap --by": "team class type pool",
    "gap --cause": "computing idle unread starting failed reserved drained wanted fragmented unwanted",
    "ls --phase": "waiting holding ended",
    "ls --state": "draft queued reserved starting running checkpointing preempted resuming degraded completed failed cancelled",
    "notices --quiet-rule": "hold drop",
    "queue --class": "inference interactive batch",
    "reserve --class": "inference interactive batch",
    "reserve --state": "requested approved denied cancelled",
    "chargeback --basis": "contracted list",
    "ledger --class": "guaranteed reserved borrowed",
    "chargeback --format": "csv xlsx pdf focus-1.4 focus-1.2 summary",
    "budget --period": "month quarter year custom",
    "budget --unit": "gpu_hours money",
    "schedule --catch-up": "none last all",
    "schedule --overlap": "allow skip replace",
    "schedule --state": "active paused ended",
    "submit --class": "inference interactive batch",
    "submit --preemptible": "true false when_borrowed",
}


def commands() -> list[str]:
    return sorted(ours())


@ends_well
def completion(arguments: Sequence[str]) -> int:
    """Print what completes gpufleet's commands in a shell."""
    parser = Arguments(prog="gpufleet completion", description=completion.__doc__, allow_abbrev=False)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help='in ~/.bashrc: eval "$(gpufleet completion bash)"')
    asked: argparse.Namespace = parser.parse_args(arguments)
    print(_fish() if asked.shell == "fish" else (ZSH if asked.shell == "zsh" else "") + _bash(), end="")
    return DONE


def _bash() -> str:
    cases = "\n".join(f'        {name}) COMPREPLY=($(compgen -W "{words}" -- "$word"));;' for name, words in sorted(WORDS.items()))
    values = "\n".join(f'        "{name}") COMPREPLY=($(compgen -W "{words}" -- "$word")); return;;' for name, words in VALUES.items())
    return BASH.format(values=values, commands=" ".join(commands()), cases=cases, of_jobs=" ".join(OF_JOBS))


def _follows(name: str, flag: str) -> str:
    """For fish: that something follows an option, and what."""
    if f"{name} --{flag}" in VALUES:
        return f" -x -a '{VALUES[f'{name} --{flag}']}'"
    return " -x -a '(gpufleet quota --paths 2>/dev/null)'" if flag in ("team", "quota") else ""


def _fish() -> str:
    lines = ["complete -c gpufleet -f", f"complete -c gpufleet -n __fish_use_subcommand -a '{' '.join(commands())}'"]
    for name, words in sorted(WORDS.items()):
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        flags = [word.removeprefix("--") for word in words.split() if word.startswith("--")]
        plain = [word for word in words.split() if not word.startswith("--")]
        lines += [f"complete -c gpufleet {seen} -l {flag}{_follows(name, flag)}" for flag in flags]
        lines += [f"complete -c gpufleet {seen} -a '{' '.join(plain)}'"] if plain else []
    lines.append(f"complete -c gpufleet -n '__fish_seen_subcommand_from {' '.join(OF_JOBS)}' -a '(gpufleet ls --ids 2>/dev/null)'")
    lines.append("complete -c gpufleet -n '__fish_seen_subcommand_from schedule' -a '(gpufleet schedule ls --ids 2>/dev/null)'")
    lines.append("complete -c gpufleet -n '__fish_seen_subcommand_from submit plan simulate sweep trace inventory' -F")
    return "\n".join(lines) + "\n"
