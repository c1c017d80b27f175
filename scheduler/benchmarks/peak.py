"""How much memory a process holds at most that has a typed scenario and plans it once: `python -m scheduler.benchmarks.peak FILE`."""

import pickle
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.values import Scenario

ROOT = Path(__file__).resolve().parents[2]
KIB_PER_UNIT = 1 if sys.platform != "darwin" else 1 / 1024  # macOS counts bytes


def peak_mib(scenario: Scenario) -> float:
    """Measured in a process of its own: what this one has held before would count as well."""
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        pickle.dump(scenario, file)
        file.flush()
        command = [sys.executable, "-m", "scheduler.benchmarks.peak", file.name]
        told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return float(told)


def main(path: str) -> None:
    scenario: Scenario = pickle.loads(Path(path).read_bytes())  # noqa: S301 - written by this program a moment ago
    plan = make_plan(scenario)
    assert plan.now == scenario.now
    print(round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB_PER_UNIT / 1024, 1))


if __name__ == "__main__":
    main(sys.argv[1])
