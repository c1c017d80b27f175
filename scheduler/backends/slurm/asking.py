"""Whether the workers of a Slurm job can serve (`launch.ready`): asked on their nodes, in their job steps, and told by files in the run's folder.

The script of a job starts each worker through `BEGIN`, which leaves a prober (`PROBER`) beside it: a process of the same step, with the worker's
user, limits and variables. It writes what has changed, and every `BEAT` seconds that it still asks. The job can write these files, too: of one only a
verdict, a moment and a word of `WORDS` are read.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler.backends.local_launch import probe_of

BEAT = 30  # seconds
SILENT_FOR = 90  # seconds without a word of its prober, and a worker is not ready
SILENT = f"Its probe has not reported for {SILENT_FOR} s."
NOT_YET = "It has not been asked yet."
MOST = 100  # bytes of a line
LINE = re.compile(r"(?P<ready>[01]) (?P<since>[0-9]{1,11}) [0-9]{1,11} (?P<word>[a-z]+|-)(?P<numbers>(?: [0-9]{1,5}){0,2}) *\n")
WORDS = {
    "-": (0, NOT_YET),
    "ok": (0, ""),
    "late": (1, "No answer within {} s."),
    "refused": (1, "Port {}: Connection refused."),
    "mute": (1, "Port {} does not speak HTTP."),
    "answered": (2, "Port {} answered {}."),
    "exited": (1, "The command ended with exit code {}."),
    "missing": (0, "It could not be asked: No such file or directory."),
    "unable": (0, "It could not be asked: the node's bash opens no connection."),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """`since`: since when it is ready, or is not any more; None: it has not been ready."""

    ready: bool
    since: datetime | None
    why: str


def file_of(seat: str, part: int) -> str:
    return f"ready-{seat}.{part}"


def answer_of(line: str) -> Answer | None:
    """What a prober says. None: nothing yet, or nothing that one writes."""
    found = LINE.fullmatch(line)
    if found is None:
        return None
    numbers = found["numbers"].split()
    count, words = WORDS.get(found["word"], (-1, ""))
    if count != len(numbers):
        return None
    try:
        since = datetime.fromtimestamp(int(found["since"]), UTC) if int(found["since"]) else None
    except (OverflowError, ValueError, OSError):
        return None
    return Answer(found["ready"] == "1", since, words.format(*numbers))


def forgotten(seats: Sequence[str]) -> str:
    """A line of the script: what an earlier start of it has left says nothing of this one."""
    return f'for gf_seat in {shlex.join(seats)}; do : > "$gf_folder/ready-$gf_seat.$gf_part"; done'


def texts() -> str:
    """A line of the script, before its first worker."""
    return f"gf_begin={shlex.quote(BEGIN)} gf_prober={shlex.quote(PROBER)}"


def beside(launch: Mapping[str, Any], seat: str, *, slot: int, tasks: int) -> str:
    """The words in front of the program of a worker; none where its job states no probe. `slot` is the worker's own of those on its node."""
    stated = probe_of(launch, 0)
    if stated is None:
        return ""
    way = next(one for one in ("http", "tcp", "command") if one in stated)
    asked = stated[way]
    words = list(asked) if way == "command" else [str(asked["port"]), asked.get("path", "/")]
    words = [str(stated["period_s"]), str(stated["timeout_s"]), str(stated["failures"]), way, *words]
    begin = '/bin/bash -p -c "$gf_begin" gpufleet "$gf_prober"'
    return f'{begin} "$gf_folder"/{shlex.quote(f"ready-{seat}.")}"$gf_part" {slot} {tasks} {len(words)} {shlex.join(words)} '


# Finds a port that nothing on the node uses, another one for each job and worker, and the same for all tasks of a worker. Then leaves the prober
# behind as nobody's child, so that the worker, which takes this place, has none that it has not started.
BEGIN = "\n".join(
    (
        "gf_prober=$1 gf_file=$2 gf_slot=$3 gf_tasks=$4 gf_count=$5; shift 5",
        'gf_asked=("${@:1:gf_count}"); shift "$gf_count"',
        "{ gf_used=$(< /proc/net/tcp); gf_used+=$(< /proc/net/tcp6); } 2>/dev/null",
        "for gf_turn in {0..99}; do",
        "  GPUFLEET_READY_PORT=$((20000 + (SLURM_JOB_ID * 64 + gf_slot % 64 + gf_turn * 97) % 12736))",
        "  printf -v gf_word ':%04X ' \"$GPUFLEET_READY_PORT\"",
        '  [[ $gf_used == *"$gf_word"* ]] || break',
        "done",
        'if [ "$gf_tasks" -gt 1 ] && ! ( set -C; echo "$GPUFLEET_READY_PORT" > "$gf_file.port-$SLURM_JOB_ID" ) 2>/dev/null; then',
        "  for gf_turn in {1..50}; do",
        '    { read -r gf_word < "$gf_file.port-$SLURM_JOB_ID"; } 2>/dev/null && GPUFLEET_READY_PORT=$gf_word && break',
        "    /bin/sleep 0.1",
        "  done",
        "fi",
        "export GPUFLEET_READY_PORT",
        'if [ "${SLURM_PROCID:-0}" -eq 0 ]; then',
        '  ( exec </dev/null >/dev/null 2>&1; /bin/bash -p -c "$gf_prober" gpufleet "$gf_file" "$$" "${gf_asked[@]}" & )',
        "fi",
        'exec -- "$@"',
    )
)

# Asks in a process of its own that can be ended, a command with all that it starts. Nothing else is asked before that is gone. It ends with the
# worker. Time is that of the machine's uptime, which no clock sets; what waits reads a pipe that nobody writes to, and starts no program. A line has
# the same length each time and is written in its place: a network file system shows a whole one to whatever opens the file.
PROBER = "\n".join(
    (
        "gf_file=$1 gf_worker=$2 gf_period=$3 gf_timeout=$4 gf_failures=$5 gf_way=$6; shift 6",
        "trap : TERM USR1",
        "exec 6<> <(:)",
        'gf_end() { if [ "$gf_pid" ]; then kill -KILL -- "-$gf_pid" 2>/dev/null || kill -KILL "$gf_pid" 2>/dev/null; fi; }',
        "trap gf_end EXIT",
        "gf_pid= gf_ready=0 gf_since=0 gf_word=- gf_failed=0 gf_left= gf_heard=0",
        "gf_look() { read -r gf_now _ < /proc/uptime; gf_now=${gf_now%.*}; }",
        "gf_tell() {",
        "  local gf_at; printf -v gf_at '%(%s)T' -1",
        "  gf_heard=$gf_now",
        '  printf \'%-79s\\n\' "$gf_ready $gf_since $gf_at $gf_word" 1<> "$gf_file"',
        "}",
        "gf_speak() {",
        "  local gf_line=",
        '  if [ "$gf_way" = tcp ]; then echo "word ok"; return; fi',
        '  printf \'GET %s HTTP/1.1\\r\\nHost: 127.0.0.1:%s\\r\\nUser-Agent: gpufleet-ready\\r\\nConnection: close\\r\\n\\r\\n\' "$2" "$1" >&7',
        "  IFS= read -r -n 4096 -u 7 gf_line",
        '  if [[ ! $gf_line =~ ^HTTP/1\\.[01]\\ ([1-5][0-9][0-9])([^0-9]|$) ]]; then echo "word mute $1"',
        '  elif [ "${BASH_REMATCH[1]}" -ge 200 ] && [ "${BASH_REMATCH[1]}" -lt 400 ]; then echo "word ok"',
        '  else echo "word answered $1 ${BASH_REMATCH[1]}"; fi',
        "}",
        "gf_connect() {",
        "  local gf_host",
        "  trap '' PIPE; LC_ALL=C",
        '  echo "pid $BASHPID"',
        '  for gf_host in 127.0.0.1 ::1; do { gf_speak "$@"; return; } 7<> "/dev/tcp/$gf_host/$1"; done',
        '  echo "word refused $1"',
        "}",
        "gf_run() {",
        '  if ! type -P -- "$1" >/dev/null; then echo "word missing"; return; fi',
        "  set -m",
        "  trap - TERM USR1",
        '  "$@" </dev/null >/dev/null 2>&1 &',
        '  echo "pid $!"',
        '  wait "$!"',
        '  echo "word exited $?"',
        "}",
        "gf_ask() {",
        "  local gf_line gf_said= gf_none=",
        '  if [ "$gf_way" = command ]; then exec 5< <(exec 6<&-; gf_run "$@")',
        '  else exec 5< <(exec 6<&- 2>&1; [ "$1" != 0 ] || set -- "$GPUFLEET_READY_PORT" "$2"; gf_connect "$@"); fi',
        '  while [ -z "$gf_said" ]; do',
        '    IFS= read -r -t "$gf_timeout" -u 5 gf_line; gf_code=$?',
        '    if [ "$gf_code" -gt 128 ]; then',
        "      gf_end",
        '      gf_left=1 gf_word="late $gf_timeout"; return',
        "    fi",
        '    case "$gf_code $gf_line" in',
        '      "0 pid "*) gf_pid=${gf_line#pid };;',
        '      "0 word "*) gf_said=${gf_line#word };;',
        '      "0 "*"No such file or directory") gf_none=1;;',
        "      0*) ;;",
        "      *) gf_said=unable;;",
        "    esac",
        "  done",
        "  exec 5<&-; gf_pid=",
        '  case "$gf_none $gf_said" in "1 refused"*) gf_said=unable;; " exited 0") gf_said=ok;; esac',
        "  gf_word=$gf_said",
        "}",
        "gf_look; gf_tell",
        'while kill -0 "$gf_worker"; do',
        '  gf_due=$((gf_now + gf_period)) gf_was="$gf_ready $gf_word"',
        '  gf_ask "$@"',
        "  gf_look",
        '  if [ "$gf_word" = ok ]; then gf_failed=0 gf_fine=1',
        "  else gf_failed=$((gf_failed + 1)); gf_fine=$((gf_ready && gf_failed < gf_failures)); fi",
        '  if [ "$gf_fine" -ne "$gf_ready" ]; then gf_ready=$gf_fine; printf -v gf_since \'%(%s)T\' -1; fi',
        '  [ "$gf_was" = "$gf_ready $gf_word" ] || gf_tell',
        '  while gf_look; [ "$gf_now" -lt "$gf_due" ] || [ "$gf_left" ]; do',
        '    if [ "$gf_left" ]; then',
        '      IFS= read -r -t 1 -u 5; [ "$?" -ne 1 ] || { gf_left= gf_pid=; exec 5<&-; }',
        "    else read -r -t 1 -u 6; fi",
        '    kill -0 "$gf_worker" || exit',
        f'    [ "$gf_now" -lt "$((gf_heard + {BEAT}))" ] || gf_tell',
        "  done",
        f'  [ "$gf_now" -lt "$((gf_heard + {BEAT}))" ] || gf_tell',
        "done",
    )
)
