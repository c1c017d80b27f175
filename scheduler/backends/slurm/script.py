"""The batch script of a part of a run: one Slurm job over nodes on which the same is wanted.

Values of a job reach the shell only as quoted words. Slurm reads options (`#SBATCH`) up to the first command, and the first line is one, so that no
value can add an option. Variables of the script's own begin with `gf_`: a job may have one of any other name.
"""

import shlex
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from scheduler.backends.base import BackendRefused, StartOrder, WorkerSeat
from scheduler.backends.local_launch import NAME, re_formed
from scheduler.backends.slurm.asking import beside, forgotten, texts
from scheduler.backends.slurm.gres import Gres, is_share, promised
from scheduler.backends.slurm.values import named
from scheduler.jobs.stored import role_named

NUMBERS = 10_000  # of parts that one resize may add: none is ever that of an earlier one
PORTS = range(10_240, 20_000)
WAITS_AGAIN = 120  # seconds for which a part of a gang that Slurm has started again waits for the others
# A task's own ranks: Slurm numbers the tasks of a step from 0. No signal is ignored for the job: a shell could never trap it again.
RANKS = "export RANK=$(($1 + SLURM_PROCID)) ROLE_RANK=$(($1 + SLURM_PROCID)) LOCAL_RANK=$SLURM_PROCID"
TASK = f'{RANKS}; shift; exec "$@"'
# One of several tasks of a worker: srun tells the highest of their codes, perhaps that of one it has ended itself, so the first to fail says its own
# ($2). And srun ends a task before it has shown its last lines, so each writes its own to the log ($3), its number in front. What reads them is not
# waited for longer than two seconds: a process that the task has left behind may keep it.
TASKS = "\n".join(
    (
        f"{RANKS}; gf_failed=$2 gf_log=$3; shift 3",
        "trap : TERM",
        'if [ "$gf_log" ]; then',
        """  exec 3> >(trap '' TERM USR1; exec /bin/sed -u "s/^/$SLURM_PROCID: /" >> "$gf_log" 2>/dev/null); gf_reader=$!""",
        "  exec >&3 2>&3 3>&-",
        "fi",
        "exec 4>&2 2>/dev/null  # what a shell says of a signal is not the job's",
        '( exec 2>&4 4>&-; exec -- "$@" )',
        "gf_code=$?",
        '[ "$gf_code" -eq 0 ] || ( set -C; echo "$gf_code" > "$gf_failed" )',
        "exec >/dev/null 4>&-",
        'for gf_turn in 1 2 3 4 5 6 7 8 9 10; do kill -0 "${gf_reader:-none}" || break; /bin/sleep 0.2; done',
        'exit "$gf_code"',
    )
)


# Asks a process to save its work if it has said what it does on USR1, else the first below it that have: as the ranks below a torchrun, which has
# not and would die of it. A shell that catches SYS and VTALRM, too, has a trap on its exit, and comes after those below it. Slurm itself would
# signal all of a step.
TELL = "\n".join(
    (
        "gf_tell() {",
        "  local gf_word gf_mask gf_of gf_knows gf_told=1",
        '  while read -r gf_word gf_mask; do [ "$gf_word" != SigCgt: ] || break; done 2>/dev/null < "/proc/$1/status" || return 1',
        "  gf_knows=$(( 0x0$gf_mask & 0x42000200 ))",
        '  if [ "$gf_knows" -eq $((0x200)) ]; then kill -USR1 "$1" 2>/dev/null; return 0; fi',
        "  for gf_of in /proc/[0-9]*/stat; do",
        '    read -r gf_word 2>/dev/null < "$gf_of" || continue',
        "    gf_mask=${gf_word##*) }; gf_mask=${gf_mask#* }",
        '    if [ "${gf_mask%% *}" = "$1" ] && gf_tell "${gf_word%% *}"; then gf_told=0; fi',
        "  done",
        '  if [ "$gf_told" -ne 0 ] && (( gf_knows & 0x200 )); then kill -USR1 "$1" 2>/dev/null; gf_told=0; fi',
        '  return "$gf_told"',
        "}",
    )
)
# The same for each task of a node's steps.
TELL_TASKS = "\n".join(
    (
        TELL,
        '"$1" listpids "$SLURM_JOB_ID" "$SLURMD_NODENAME" | while read -r gf_task gf_job gf_step gf_local gf_more; do',
        '  case "$gf_step:$gf_local" in *[!0-9:]*|*:|:*) ;; *) gf_tell "$gf_task";; esac',
        "done",
    )
)


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that hold the same: so many GPUs, processors and memory each."""

    number: int
    nodes: tuple[str, ...]
    seats: tuple[WorkerSeat, ...]
    gpus: int
    cpus: int
    memory_mib: int
    gres: str = ""  # what is asked of each node
    types: tuple[tuple[str, int], ...] = ()  # of GPUs of each node with MIG instances: what its numbers stand for
    gang: int = 1  # so many parts begin their programs together

    @property
    def promise(self) -> str:
        """What each of its nodes is to have, in the words that a node reads before the start (`on_node`)."""
        whole, parts = promised(self.gres)
        return f"v2:gpus={whole}:cpus={self.cpus}:{parts}" if parts else f"v1:gpus={self.gpus}:cpus={self.cpus}"


@dataclass(frozen=True, slots=True)
class Places:
    """Where a run's files lie, as the nodes see them, and whose the processes are."""

    run: str
    checkpoints: str
    user: str
    home: str
    report_url: str = ""
    port: int = 0  # where the ranks meet; 0: a run of before has that of its name
    node_logs: str = ""  # where a node keeps logs until they are asked for; empty: they are written to the folder of the run


def parts_of(order: StartOrder, gres_of: Callable[[str], str] = str, *, first: int = 0) -> list[Part]:
    """The seats of a run as Slurm jobs: nodes with equal needs together, in the order of their first rank. `gres_of` tells the GRES of a node.

    A share is a job of its own, as Slurm takes all shares of a job from one GPU. Of a run that is resized in place each worker is one, so that it
    comes and goes by itself.
    """
    if order.launch.get("in_place") and len(order.workers) > 1:
        ranks = sorted(order.workers, key=lambda seat: (seat.role, seat.index))
        return [part for place, seat in enumerate(ranks, first) for part in parts_of(replace(order, workers=(seat,)), gres_of, first=place)]
    sharing = str(order.spec.get("sharing") or "mps")
    by_place: dict[tuple[str, str], list[WorkerSeat]] = {}
    for seat in sorted(order.workers, key=lambda seat: (seat.role, seat.index)):
        alone = f"{seat.role}-{seat.index}" if is_share(seat) else ""
        by_place.setdefault((seat.node, alone), []).append(replace(seat, sharing=sharing) if alone else seat)
    alike: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for (node, alone), seats in by_place.items():
        cpus = sum(_cpus(order, seat) for seat in seats)
        memory = sum(int((role_named(order.spec, seat.role).get("host_memory_gb") or 0) * 1024) for seat in seats)
        gpus = 0 if alone else sum(len(seat.gpus) for seat in seats)
        there = Gres.read(gres_of(node))
        gres = there.asked(seats) if any(seat.gpus for seat in seats) else ""
        types = there.types if gres and there.profiles else ()
        alike.setdefault((gpus, cpus, memory, len(seats), gres, types, alone), []).append((node, alone))
    parts = [
        Part(number, tuple(node for node, _ in places), tuple(seat for place in places for seat in by_place[place]), *what[:3], *what[4:6])
        for number, (what, places) in enumerate(alike.items(), first)
    ]
    return [replace(part, gang=len(parts)) for part in parts]


def tasks_of(order: StartOrder, seat: WorkerSeat) -> int:
    return max(1, len(seat.gpus)) if order.launch.get("per", "worker") == "gpu" else 1


def is_single(order: StartOrder, part: Part) -> bool:
    """One process: it needs no step of its own, and is sent signals through the script."""
    return len(part.seats) == 1 and tasks_of(order, part.seats[0]) == 1 and not is_replaced(order)


def is_replaced(order: StartOrder) -> bool:
    """Whether its workers can start anew, each in its own Slurm job: of what a step has started nothing outlasts it."""
    return order.serves and bool(order.launch.get("in_place"))


def has_own_log(order: StartOrder, part: Part, node_logs: str) -> bool:
    """Whether its node makes the log of its worker. Not where another part in that place had one before: what the node makes says that it began."""
    return is_single(order, part) and not keeps_logs_on_its_node(order, node_logs) and not joins_later(part.number)


def joins_later(number: int) -> bool:
    """Whether a part of that number was added by a resize, perhaps in the place of one that was lost."""
    return number >= NUMBERS


def saves(order: StartOrder) -> bool:
    """Whether the job says that it saves its work when it is asked to (USR1)."""
    return bool(order.spec.get("checkpoint"))


def ports_of(key: str) -> Iterator[int]:
    """Where the ranks of a run may meet: all ports, from one on that is likely another for another run."""
    first = zlib.crc32(key.encode()) % len(PORTS)
    return chain(PORTS[first:], PORTS[:first])


def script_of(order: StartOrder, part: Part, *, places: Places, master: str, secrets: Mapping[str, str]) -> str:
    env = _environment(order, places, secrets)
    ranks = _ranks(order, master, places.port or next(ports_of(order.key)))
    workdir = str(order.launch.get("workdir") or "")
    if workdir and (not workdir.startswith("/") or "\0" in workdir):
        raise BackendRefused(f"The working directory {workdir} is not an absolute path.")
    lines = ["#!/bin/bash", ":", "umask 027", f"gf_folder={shlex.quote(places.run)} gf_part={part.number}; gf_logs=$gf_folder"]
    seats = shlex.join(f"{seat.role}-{seat.index}" for seat in part.seats)
    exits = " ".join(f'"$gf_folder"/{shlex.quote(f"{seat.role}-{seat.index}")}.{part.number}.exit' for seat in part.seats)
    lines += [f"for gf_seat in {seats}; do", *_COMPLETED]
    started = _programs(order, part)
    if order.launch.get("ready"):
        lines += [forgotten([f"{seat.role}-{seat.index}" for seat in part.seats]), texts()]
    if part.gang > 1:
        lines += ["trap : USR1", *(line.format(gang=part.gang, exits=exits, patience=WAITS_AGAIN) for line in _TOGETHER)]
    if keeps_logs_on_its_node(order, places.node_logs):
        lines += [f"gf_top={shlex.quote(places.node_logs)}", *_LOCAL]
    if not (alone := is_single(order, part)):
        programs = " ".join(f"gf_{name}=$(command -v {name})" for name in ("srun", "scancel", "scontrol"))
        lines += [f"{programs}  # before the job's own PATH, which may not have them", f"gf_own_name={shlex.quote(named(order.key))}"]
    lines += [*(f"export {name}={shlex.quote(value)}" for name, value in env.items())]
    lines.append("IFS=$' \\t\\n'  # every shell sets its own anew, and this one reads numbers and lists by it")
    # A home that a node does not have is no fault of the job; a folder that it names is.
    lines.append(f"cd -- {shlex.quote(workdir)} || exit 126" if workdir else f"cd -- {shlex.quote(places.home)} 2>/dev/null || cd /")
    if alone:
        rank = ranks[part.seats[0].role, part.seats[0].index]
        words = {**rank, "RANK": rank["FIRST"], "ROLE_RANK": rank["FIRST"], "LOCAL_RANK": "0"}
        lines += [f"export {name}={shlex.quote(value)}" for name, value in words.items() if name != "FIRST"]
        seat = part.seats[0]
        lines += [
            f"gf_program=({started[seat.role, seat.index]})",
            f"gf_name={shlex.quote(f'{seat.role}-{seat.index}')}",
            *(() if has_own_log(order, part, places.node_logs) else _LOG_ALONE),
            *((TELL, "trap 'gf_tell \"$gf_pid\"' USR1") if saves(order) else ("trap : USR1",)),
            *_ALONE,
        ]
        return "\n".join(lines) + "\n"
    lines.append(_FORGET.format(exits=exits))
    lines += [f"gf_tell_tasks={shlex.quote(TELL_TASKS)}", *TELL_ALL] if saves(order) else ["trap : USR1"]
    lines += ["trap '${gf_leave:-:}' TERM", f"gf_task={shlex.quote(TASK)}", f"gf_tasks_do={shlex.quote(TASKS)}"]
    lines += [f"gf_names={shlex.quote(_names(env))}", *_AGAIN] if is_replaced(order) else ["gf_again() { return 1; }"]
    lines += _KEEPER
    for seat in part.seats:
        rank = ranks[seat.role, seat.index]
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in rank.items() if name != "FIRST")
        gres = f"--gres={Gres(part.types).asked([seat])}" if seat.gpus else "--gres=none"
        name, node, tasks = shlex.quote(f"{seat.role}-{seat.index}"), shlex.quote(seat.node), tasks_of(order, seat)
        program = started[seat.role, seat.index]
        lines.append(f"worker {name} {node} {tasks} {gres} {_cpus(order, seat) // tasks or 1} {rank['FIRST']} {exports} -- {program} &")
        lines.append("gf_pids+=($!)")
    return "\n".join([*lines, *_WAIT]) + "\n"


def again_of(order: StartOrder, seat: WorkerSeat, sequence: int, *, places: Places, master: str, secrets: Mapping[str, str]) -> str:
    """What a worker that starts anew is to run with, for `_AGAIN`."""
    rank = _ranks(order, master, places.port or next(ports_of(order.key)))[seat.role, seat.index]
    values = _environment(order, places, secrets) | {name: value for name, value in rank.items() if name != "FIRST"}
    lines = ["unset -v $gf_names", f"gf_names={shlex.quote(_names(values))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, f"gf_sequence={sequence} gf_rank={rank['FIRST']}", f"gf_program=({_program(order, seat, 0)})"]) + "\n"


def _names(values: Mapping[str, str]) -> str:
    """Of variables that the next one is not to have from this one, but for what no shell is without."""
    return " ".join(name for name in values if name != "PATH")


# A step beside those of the workers, on each node. A shell of its own starts it: the number of a worker is read from `$!` after its start.
TELL_ALL = (
    "gf_tell_all() {",
    '  ( "$gf_srun" --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\',
    '    --mem=0 --gres=none --output=none /bin/bash -p -c "$gf_tell_tasks" gpufleet "$gf_scontrol" >/dev/null 2>&1 & )',
    "}",
    "trap gf_tell_all USR1",
)


# What srun says where it could not start a worker, or lost it: of those the exit code is srun's own. Workers write to their logs, never there.
NOT_STARTED = (
    "Unable to create step", "Unable to confirm allocation", "Expired or invalid job", "Task launch for", "Application launch failed",
    "Unable to contact slurm controller", "Communication connection failure", "Zero Bytes were transmitted", "Node failure on",
)  # fmt: skip
ENDED_ITSELF = ("xited with exit code", "Out Of Memory")  # and where it says both, the program did run


# A controller that was killed may have forgotten that a part was completed, and start it again.
_COMPLETED = (
    '  [ -e "$gf_folder/$gf_seat.$gf_part.exit" ] || { gf_left=; break; }',
    '  { read -r gf_left _ < "$gf_folder/$gf_seat.$gf_part.exit" && [ "$gf_left" = 0 ]; } 2>/dev/null || { gf_left=; break; }',
    "done",
    '[ -z "$gf_left" ] || exit 0',
    "printf -v gf_began '%(%s)T' -1",
)


# Slurm starts each part of a gang by itself: none does anything before all have begun. What one writes begins with a word for this start of it, and
# behind that are those of the others that it has read: it goes on when each has read its own. So what an earlier start has left counts for nothing,
# and one that Slurm starts again beside others that have not ended is not taken for a gang: it ends without an exit code, as one that was lost. A
# network file system looks anew at a folder that is listed.
_TOGETHER = (
    'gf_start="$SLURM_JOB_ID.$gf_began.$$" gf_again= gf_told=',
    '[ ! -e "$gf_folder/begun-$gf_part" ] || {{ gf_again=1; /bin/rm -f -- {exits}; }}',
    "gf_together() {{",
    "  local gf_file gf_text gf_all=$gf_start gf_heard=0",
    '  for gf_file in "$gf_folder"/begun-*; do',
    '    {{ read -r gf_text < "$gf_file"; }} 2>/dev/null || continue',
    '    case " $gf_text " in *" $gf_start "*) gf_heard=$((gf_heard + 1));; esac',
    '    gf_all+=" ${{gf_text%% *}}"',
    "  done",
    '  [ "$gf_told" = "$gf_all" ] || {{ echo "$gf_all" > "$gf_folder/begun-$gf_part" || exit 1; gf_told=$gf_all; }}',
    '  [ "$gf_heard" -ge {gang} ]',
    "}}",
    "until gf_together; do",
    '  [ -z "$gf_again" ] || [ "$SECONDS" -lt {patience} ] || {{ echo "gpufleet: Slurm started this part of the gang again alone."; exit 1; }}',
    "  /bin/sleep 0.2",
    "done",
)


# Or may have forgotten that it had started it, and end that run: its workers then leave what says nothing of those that are started now.
_FORGET = (
    '[ ! -e "$gf_folder/first.$SLURM_JOB_ID" ] || '
    '/bin/rm -f -- "$gf_folder"/first."$SLURM_JOB_ID" "$gf_folder"/lost."$SLURM_JOB_ID" "$gf_folder"/*.failed."$SLURM_JOB_ID" {exits}'
)


def _any_of(texts: Sequence[str]) -> str:
    return "|".join(f"*{shlex.quote(text)}*" for text in texts)


# Whether a worker whose step has ended is to start anew, and with what, which the console has left. A network file system looks anew at a folder that
# is listed. What was answered of the old one is gone before it is said that the new one begins. A controller that was started meanwhile may take the
# old step's GPUs for held, and never wakes the srun that waits for them: one that comes later gets them.
_AGAIN = (
    """gf_numbered='echo "$SLURM_STEP_ID" > "$1"; shift; exec "$@"'  # so that a signal meets this step alone""",
    "gf_again() {",
    "  local gf_file gf_there=",
    '  for gf_file in "$gf_folder"/again-*; do [ "$gf_file" != "$gf_folder/again-$1.$gf_part" ] || gf_there=1; done',
    '  [ "$gf_there" ] && . "$gf_folder/again-$1.$gf_part" || return 1',
    '  /bin/rm -f -- "$gf_folder/again-$1.$gf_part" "$gf_folder/$1.failed.$SLURM_JOB_ID"',
    '  [ ! -e "$gf_folder/ready-$1.$gf_part" ] || : > "$gf_folder/ready-$1.$gf_part"',
    '  echo "$gf_sequence" > "$gf_folder/began-$1.$gf_part"',
    "}",
)


# A worker is a step. Its exit code is kept in a file of its own; the first that fails ends the others, as a gang without a member waits in vain. They
# are ended by number and name, and only while the script waits for them: a controller that was killed may give the number again.
# A task writes to its log itself where its node has the folder: by way of srun, what it wrote just before it was killed can be lost.
_KEEPER = (
    "unset SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK  # those of the whole job; each step has its own",
    "gf_pids=()",
    "worker() {",
    "  local gf_name=$1 gf_node=$2 gf_tasks=$3 gf_gres=$4 gf_cpus=$5 gf_first=$6 gf_code gf_said gf_lost= gf_own=1 gf_label=",
    '  local gf_six=("${@:1:6}"); shift 6',
    '  local gf_failed="$gf_folder/$gf_name.failed.$SLURM_JOB_ID"',
    '  while [ "$1" != -- ]; do export "$1"; shift; done; shift',
    '  [ -z "$gf_why" ] || echo "$gf_why" >> "$gf_logs/$gf_name.log"',
    '  [ -z "$gf_local" ] || [ "$gf_node" = "$SLURMD_NODENAME" ] || gf_own=',
    '  if [ "$gf_tasks" -gt 1 ]; then',
    '    [ "$gf_own" ] && [ -x /bin/sed ] || { gf_own=; gf_label=--label; }  # which of its ranks wrote a line',
    '    set -- /bin/bash -p -c "$gf_tasks_do" gpufleet "$gf_first" "$gf_failed" "${gf_own:+$gf_logs/$gf_name.log}" "$@"',
    """  elif [ "$gf_own" ]; then set -- /bin/sh -c 'exec >>"$1" 2>&1; shift; '"$gf_task" gpufleet "$gf_logs/$gf_name.log" "$gf_first" "$@\"""",
    '  else set -- /bin/sh -c "$gf_task" gpufleet "$gf_first" "$@"; fi',
    '  gf_said=$("$gf_srun" --exact --mem=0 --nodes=1 --nodelist="$gf_node" --ntasks="$gf_tasks" --cpus-per-task="$gf_cpus" "$gf_gres" \\',
    '    --kill-on-bad-exit=1 --open-mode=append $gf_label --output="$gf_logs/$gf_name.log" ${gf_anew:+--immediate=10} "$@" 2>&1)',
    "  gf_code=$?",
    '  [ -z "$gf_said" ] || printf "%s\\n" "$gf_said" >&2',
    '  if gf_again "$gf_name"; then gf_anew=1; worker "${gf_six[@]:0:5}" "$gf_rank" -- "${gf_program[@]}"; return; fi',
    '  case "$gf_anew:$gf_said" in [1-9]:*"Unable to create step"*|[1-5][0-9]:*"Unable to create step"*)',
    '    /bin/sleep 2; gf_anew=$((gf_anew + 1)); worker "${gf_six[@]}" -- "${gf_program[@]}"; return',
    "  esac",
    f'  case "$gf_code:$gf_said" in 0:*|{_any_of(ENDED_ITSELF)}) ;; {_any_of(NOT_STARTED)}) gf_lost=1;; esac',
    '  if [ -z "$gf_lost" ]; then',
    '    gf_said=; [ "$gf_code" -eq 0 ] || { read -r gf_said < "$gf_failed"; } 2>/dev/null',
    '    case "$gf_said" in ""|0*|*[!0-9]*) ;; *) gf_code=$gf_said;; esac',
    '    echo "$gf_code $gf_began" > "$gf_folder/$gf_name.$gf_part.exit"',
    "  fi",
    '  if [ "$gf_code" -ne 0 ]; then',
    '    if ( set -C; echo "$gf_code" > "$gf_folder/first.$SLURM_JOB_ID" ) 2>/dev/null; then',
    '      [ -z "$gf_lost" ] || echo "$gf_name" > "$gf_folder/lost.$SLURM_JOB_ID"',
    '      "$gf_scancel" "$gf_own_name" --signal=TERM "$SLURM_JOB_ID"',
    "    fi",
    '    ( /bin/sleep 10; kill -0 "$$" && "$gf_scancel" "$gf_own_name" --signal=KILL "$SLURM_JOB_ID" ) >/dev/null 2>&1 &',
    "  fi",
    '  return "$gf_code"',
    "}",
)
# The first that failed says with which code. Where that could not be written down, no failure is taken for success.
_WAIT = (
    "gf_code=0 gf_first=",
    'for gf_pid in "${gf_pids[@]}"; do',
    '  while kill -0 "$gf_pid" 2>/dev/null; do wait "$gf_pid"; done',
    '  wait "$gf_pid"; gf_ended=$?  # again, as a signal may have interrupted the one before',
    '  [ "$gf_code" -ne 0 ] || gf_code=$gf_ended',
    "done",
    '{ read -r gf_first < "$gf_folder/first.$SLURM_JOB_ID"; } 2>/dev/null',
    'exit "${gf_first:-$gf_code}"',
)


# One process, whose exit code is kept in a file as a worker's is: Slurm forgets a job that has ended. The script passes on what it is sent, to the
# process alone; its number comes through a pipe. The shell in between only waits: the status of a `wait` that signals interrupt is not reliable.
# Each further process here costs the node half a millisecond of every start, each further program more.
_ALONE = (
    "trap '${gf_leave:-:}; kill -TERM \"$gf_pid\" 2>/dev/null' TERM",
    "exec 3>&1 4>&2",
    "coproc gf_pipe {",
    "  trap : TERM USR1; trap - INT QUIT; exec 2>/dev/null  # what a shell says of a signal is not the job's",
    '  ( echo "$BASHPID"; exec < /dev/null >&3 2>&4 3>&- 4>&-; exec -- "${gf_program[@]}" )',
    "  gf_code=$?",
    '  echo "$gf_code $gf_began" > "$gf_folder/$gf_name.$gf_part.exit"; exit "$gf_code"',
    "}",
    "gf_keeper=$!",
    '{ read -r gf_pid <&"${gf_pipe[0]}"; } 2>/dev/null  # which is closed already where all is over',
    'while kill -0 "$gf_keeper" 2>/dev/null; do wait "$gf_keeper"; gf_code=$?; done',
    'read -r gf_left _ < "$gf_folder/$gf_name.$gf_part.exit"; exit "${gf_left:-$gf_code}"',
)


# Copies what is new in the logs of a folder of the node, as often as it is called, from wherever.
GATHER = "\n".join(
    (
        "PATH=/usr/bin:/bin",
        'exec 9>>"$1/lock" && flock -w 3 9 || exit 1',
        'for gf_log in "$1"/*.log; do',
        '  [ -f "$gf_log" ] || continue',
        '  gf_had=$(stat -c %s -- "$2/${gf_log##*/}" 2>/dev/null || echo 0)',
        '  tail -c "+$((gf_had + 1))" -- "$gf_log" >> "$2/${gf_log##*/}" || exit 1',
        "done",
    )
)
# The folder is made anew, so that nobody else can have put a link there. A job that is asked to leave may be killed soon: from then on its logs are
# copied each second, and all of them at its end. `local-PART` says where they are until then.
_LOCAL = (
    'if gf_local=$(mktemp -d "$gf_top/gpufleet-XXXXXXXX" 2>&1); then',
    '  gf_logs=$gf_local; printf "%s %s\\n" "$SLURMD_NODENAME" "$gf_local" > "$gf_folder/local-$gf_part"',
    "  gf_leave=gf_leaving; trap gf_end EXIT",
    "else",
    '  gf_why="gpufleet: $gf_local: this log is written to the shared folder."',
    "fi",
    f'gf_gather() (\nset -- "$gf_local" "$gf_folder"\n{GATHER}\n)',
    "gf_leaving() { [ \"$gf_late\" ] || { ( trap '' TERM USR1; while /bin/sleep 1; do gf_gather; done ) & gf_late=$!; }; }",
    "gf_end() {",
    "  trap '' TERM USR1; PATH=/usr/bin:/bin",
    '  [ -z "$gf_late" ] || kill -KILL "$gf_late"',
    '  gf_gather && rm -f "$gf_folder/local-$gf_part" && rm -rf -- "$gf_local"',
    "}",
)
_LOG_ALONE = ('exec >>"$gf_logs/$gf_name.log" 2>&1', '[ -z "$gf_why" ] || echo "$gf_why"')


def keeps_logs_on_its_node(order: StartOrder, folder: str) -> bool:
    """Not where another worker may go on with the log of one that was lost."""
    return bool(folder) and not order.launch.get("in_place")


def _cpus(order: StartOrder, seat: WorkerSeat) -> int:
    """Processors of a worker: what its role asks for, rounded down, and at least one for each of its tasks. Rounded up, eight workers of 7.5 would
    not fit the 60 processors on which they were placed, and Slurm would never start them."""
    return max(tasks_of(order, seat), int(role_named(order.spec, seat.role).get("cpus") or 1))


def _programs(order: StartOrder, part: Part) -> dict[tuple[str, int], str]:
    """The words of the shell that start each worker."""
    slots = dict.fromkeys(part.nodes, 0)
    found = {}
    for seat in part.seats:
        found[seat.role, seat.index] = _program(order, seat, slots[seat.node])
        slots[seat.node] += 1
    return found


def _program(order: StartOrder, seat: WorkerSeat, slot: int) -> str:
    name = f"{seat.role}-{seat.index}"
    asked = beside(order.launch, name, slot=slot, tasks=tasks_of(order, seat))
    numbered = f'/bin/sh -c "$gf_numbered" gpufleet "$gf_folder"/{shlex.quote(f"step-{name}.")}"$gf_part" ' if is_replaced(order) else ""
    return f"{numbered}{asked}{shlex.join(_argv(order.launch))}"


def _argv(launch: Mapping[str, Any]) -> list[str]:
    if launch.get("image"):
        raise BackendRefused("The Slurm back-end starts programs of its nodes and runs no images; the job names one.")
    shell, command = launch.get("shell"), launch.get("command")
    argv = ["/bin/sh", "-c", str(shell)] if shell else command
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) and "\0" not in part for part in argv):
        raise BackendRefused("The job specifies no command: launch.command is a list of arguments.")
    return list(argv)


def _environment(order: StartOrder, places: Places, secrets: Mapping[str, str]) -> dict[str, str]:
    given = {**re_formed(order.launch), **{str(name): str(value) for name, value in (order.launch.get("env") or {}).items()}}
    own = {
        "HOME": places.home,
        "USER": places.user,
        "LOGNAME": places.user,
        "GPUFLEET_JOB": order.job,
        "GPUFLEET_ATTEMPT": str(order.attempt),
        "GPUFLEET_TOKEN": order.token,
        "GPUFLEET_CHECKPOINT_DIR": places.checkpoints,
        "GPUFLEET_RESUME_FROM": order.resume_from,
        "GPUFLEET_RESUME_STEP": str(order.resume_step),
        "GPUFLEET_GRACE_SECONDS": str(order.grace_seconds),
    }
    own |= order.service
    if places.report_url:
        own["GPUFLEET_REPORT_URL"] = places.report_url
    found = {**given, **own, **secrets}
    for name, value in found.items():
        if not NAME.fullmatch(name) or "\0" in value:
            raise BackendRefused(f"{name!r} is not a name of a variable, or its value contains a null character.")
    return found


def _ranks(order: StartOrder, master: str, port: int) -> dict[tuple[str, int], dict[str, str]]:
    """The variables of each worker, as torchrun sets them; `FIRST` is the rank of its first task."""
    seats: Sequence[WorkerSeat] = sorted(order.workers, key=lambda seat: (seat.role, seat.index))
    counts = [tasks_of(order, seat) for seat in seats]
    world, first, found = sum(counts), 0, {}
    for place, (seat, count) in enumerate(zip(seats, counts, strict=True)):
        found[seat.role, seat.index] = {
            "FIRST": str(first),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": str(place),
            "NODE_RANK": str(place),
            "GROUP_WORLD_SIZE": str(len(seats)),
            "ROLE_WORLD_SIZE": str(world),
            "MASTER_ADDR": master,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": order.key,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "GPUFLEET_ROLE": seat.role,
        }
        first += count
    return found
