"""What hostile jobs run, on whichever back-end: programs in Python."""

from pathlib import Path

# Nested brackets, a pipe, an endless device, folders of very many names, a loop of links, and all that while it goes on running.
MANIFESTS = """
import os, signal, time
own = os.environ["GPUFLEET_CHECKPOINT_DIR"]
def step(number):
    path = f"{own}/step-{number}"
    os.makedirs(path, exist_ok=True)
    return path
open(step(1) + "/0.json", "w").write("[" * 200_000)
open(step(2) + "/0.json", "w").write('{"shards": 1, "files": ' + "[" * 200_000 + "]" * 200_000 + "}")
os.mkfifo(step(3) + "/0.json")
os.symlink("/dev/zero", step(4) + "/0.json")
os.symlink(".", f"{own}/step-5")
open(step(6) + "/0.json", "w").write('{"shards": 1, "files": [{"shard": 0, "file": "x", "bytes": %s}]}' % ("9" * 5_000))
open(step(7) + "/0.json", "w").truncate(1 << 40)
for number in range(20_000):
    os.close(os.open(f"{own}/name-{number}", os.O_CREAT, 0o600))
for first in range(5):
    # Only the newest steps are looked at, so each has its turn.
    for number in range(1, 8):
        fresh = f"{own}/step-{number + 7 * (first + 1)}"
        os.rename(f"{own}/step-{number + 7 * first}", fresh)
        time.sleep(0.15)
print("written")
time.sleep(4)
"""


def links_to(target: Path) -> str:
    """Links where the console makes, owns, lists or reads something. It ends with a fault, so that it begins again."""
    return f"""
import os
own = os.environ["GPUFLEET_CHECKPOINT_DIR"]
for place in ("../2", "../../planted", "step-1", "step-2/0.json", "../home/2"):
    path = os.path.join(own, place)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink({str(target)!r}, path)
        print("planted", place)
    except OSError:
        print("refused", place)
try:
    os.rename(own, own + "x")
    print("renamed")
except OSError:
    print("stays")
raise SystemExit(1)
"""
