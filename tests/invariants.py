"""What holds about jobs, attempts and placements at every moment; each fault is a sentence."""

from collections import Counter, defaultdict

from scheduler.models import ENDED, HOLDING, Attempt, Job, JobState, Placement
from scheduler.selectors.reconciliation import usage_differences


def fleet_faults() -> list[str]:
    return [*seat_faults(), *gang_faults(), *ledger_faults()]


def ledger_faults() -> list[str]:
    """Usage is counted once, to the millisecond and the thousandth of a GPU."""
    return [f"{difference.what} ({difference.gpu_millis})" for difference in usage_differences()]


def seat_faults() -> list[str]:
    """No GPU is promised twice, whole or in parts, and a split GPU is only held by its slices, which are there."""
    held: Counter[int] = Counter()
    slices: Counter[int] = Counter()
    faults = []
    for gpu, mig, milli, mode in Placement.objects.filter(until__isnull=True).values_list("gpu_id", "mig_id", "gpu_milli", "gpu__mode"):
        held[gpu] += milli
        if mig is not None:
            slices[mig] += 1
        if (mode == "mig") != (mig is not None):
            faults.append(f"GPU {gpu} in mode {mode} is held by {'a slice' if mig else 'a whole worker'}")
    gone = Placement.objects.filter(until__isnull=True, mig__removed_at__isnull=False)
    faults += [f"slice {key} is held and gone" for key in gone.values_list("mig_id", flat=True)]
    faults += [f"GPU {gpu} is held {milli} milli" for gpu, milli in held.items() if milli > 1000]
    faults += [f"slice {key} is held {count} times" for key, count in slices.items() if count > 1]
    return faults


def gang_faults() -> list[str]:
    """A job that holds GPUs has one open attempt and its whole gang; one that does not has nothing open."""
    open_attempts = Counter(Attempt.objects.filter(ended_at__isnull=True).values_list("job_id", flat=True))
    seats: dict[int, int] = defaultdict(int)
    for job, milli in Placement.objects.filter(until__isnull=True).values_list("job_id", "gpu_milli"):
        seats[job] += milli
    faults = []
    rows = Job.objects.values_list("id", "state", "gpus_milli", "ended_at", "spec", "degraded_since")
    for key, state, milli, ended, spec, degraded in rows:
        runs, holds = open_attempts[key], seats[key]
        if runs != (state in HOLDING) or (state not in HOLDING and holds):
            faults.append(f"job {key} is {state} and has {runs} open attempts that hold {holds}")
        # What lost workers waits for others, or is leaving; what is elastic may have more than its minimum.
        short = state in (JobState.DEGRADED, JobState.CHECKPOINTING) or degraded is not None
        elastic = any(role.get("max", role.get("min", 1)) > role.get("min", 1) for role in spec.get("roles") or ())
        if state in HOLDING and ((holds < milli and not short) or (holds > milli and not elastic)):
            faults.append(f"job {key} is {state}, wants {milli} and has {holds}")
        if (state in ENDED) != (ended is not None):
            faults.append(f"job {key} is {state} and ended at {ended}")
    if Placement.objects.filter(attempt__ended_at__isnull=False, until__isnull=True).exists():
        faults.append("a placement is open though its attempt has ended")
    return faults
