"""Stays with the processes of one worker of a local run, whatever becomes of the console that started it.

A program of its own: the standard library, and the package `supervising` with a file for each subject. It is told what to start on its standard
input, so that secrets are in no file and in no process list. Its folder is its memory, and what the console knows of the worker:

    lock          held while it lives
    state.json    what it is: its processes with their start times (a process id alone may be another's by now), and how they ended
    log.<offset>  what the processes write, in segments that are named for where they begin; the oldest go

Each rank is a process group of its own. When the first of a worker's ranks fails, the others are ended. When the last has ended, nothing that they
started is left: the supervisor adopts every orphan below it (a subreaper), and the ranks of another user live in a PID namespace that ends as one.
"""

import fcntl
import json
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # an isolated interpreter knows no path of ours
    from scheduler.backends.supervising.fence import tried
    from scheduler.backends.supervising.namespaces import probe
    from scheduler.backends.supervising.worker import Worker

    if sys.argv[1:] == ["probe"]:
        sys.stdout.write(probe())
        return
    if sys.argv[1:] == ["pin"]:
        sys.stdout.write(tried(json.load(sys.stdin)))
        return
    order = json.load(sys.stdin)
    folder = Path(order["folder"])
    if os.fork():
        os._exit(0)  # whoever started us has nobody to wait for, and we have no parent to die with
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if (folder / "state.json").exists():
        return  # it has been started already; a worker is started once
    # A console that is stopped from a terminal takes nobody with it. Handlers, as what is ignored would be ignored by the ranks as well.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Worker(folder, order).run()


if __name__ == "__main__":
    main()
