"""On a machine with NVIDIA GPUs: a real CUDA process computes on the GPUs that it was given, and on no others."""

import json
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from dashboards.telemetry.nvml import NvmlUnavailable, machine_uuids
from gpufleet.core.times import now
from scheduler.backends.base import WorkerSeat
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from tests.scheduler.backends.local_machine import log, running
from tests.scheduler.backends.scenes import start_order

# CUDA's own driver library without PyTorch: a context and 256 MiB on every device that is visible.
HOLD = """
    import ctypes, time
    cuda = ctypes.CDLL("libcuda.so.1")
    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        if code:
            raise SystemExit(f"{name}: {code}")
    count = ctypes.c_int()
    code = cuda.cuInit(0)
    if code == 100:
        print("sees 0")
        raise SystemExit(0)
    call("cuDeviceGetCount", ctypes.byref(count))
    for number in range(count.value):
        device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        call("cuDeviceGet", ctypes.byref(device), number)
        call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(256 << 20))
    print("sees", count.value, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(tmp_path, Rules(same_user=True))


def holders() -> dict[str, set[int]]:
    """Processes that compute, by GPU."""
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {pynvml.nvmlDeviceGetUUID(one): {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(one)} for one in handles}
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.gpu
@pytest.mark.parametrize("given", [0, 1])
def test_a_process_computes_on_the_gpus_it_was_given_and_on_no_others(backend: LocalBackend, tmp_path: Path, given: int) -> None:
    try:
        uuids = machine_uuids()
    except NvmlUnavailable as fault:
        pytest.skip(str(fault))
    # The last ones: whoever ignores what it is told takes the first.
    mine = uuids[len(uuids) - given :]
    seat = WorkerSeat("worker", 0, "here", tuple(range(given)), tuple(mine))
    order = start_order(workers=1, launch={"command": [sys.executable, "-u", "-c", textwrap.dedent(HOLD)]})
    backend.start(replace(order, workers=(seat,)), now=now())
    try:
        running(backend, "sees")
        assert log(backend) == f"sees {given}\n"
        pids = {one["pid"] for path in tmp_path.glob("runs/*/*/state.json") for one in json.loads(path.read_text())["processes"]}
        found = {uuid for uuid, held in holders().items() if held & pids}
        assert found == set(mine)
    finally:
        backend.stop(key="j-1.1", sequence=9, force=True, now=now())
