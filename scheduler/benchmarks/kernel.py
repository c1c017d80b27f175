"""A fixed calculation that tells how fast the machine is now, so that figures of two machines, or of two hours, can be compared."""

import time
from typing import Any

BEST_OF = 5
USUAL_MS = 35  # what it takes on the machine that bounds are stated for
FIGURES = {"median_ms": "median", "cpu_ms": "cpu", "p99_ms": "p99"}


def kernel_ms() -> float:
    """Processor time of the sum of i * i over 1,000,000, the best of five runs, in milliseconds."""
    return min(_once() for _ in range(BEST_OF))


def _once() -> float:
    begun = time.process_time()
    total = 0
    for i in range(1_000_000):
        total += i * i
    return 1000 * (time.process_time() - begun)


def in_kernels(result: dict[str, Any], before: float, after: float) -> dict[str, Any]:
    """The figures of a case with each in units of the kernel, as it took before and after, and the median on the usual machine."""
    kernel = (before + after) / 2
    units = {f"{name}_kernels": round(result[key] / kernel, 5) for key, name in FIGURES.items() if result.get(key) is not None}
    return {**result, "kernel_ms": round(kernel, 2), **units, "usual_ms": round(result["median_ms"] / kernel * USUAL_MS, 3)}
