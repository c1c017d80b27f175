"""Gavel (Narayanan et al., OSDI 2020): a line for each job, and a table of steps a second by GPU type, kind of job and number of GPUs.

A line has ten values between tabs and no header. The table is the JSON file of throughputs; of it the speeds of jobs that are alone count,
and those of workers that lie together. Speeds become relative to the fastest type that the table has for the job, as does its work.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .rows import NOTHING_ASKED, File, Imported, Row, Shape, TraceFault, gang, largest_of, nodes_of, role

NAME = "gavel"
COLUMNS = (
    *("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir"),
    *("total_steps", "scale_factor", "priority_weight", "SLO", "arrival_time"),
)
APART = "_unconsolidated"
USUAL = (6, 4)  # nodes of each type, and GPUs of each: 24 GPUs of each type, as in the paper's smaller fleet
UNKNOWN = "no speed in the table for this kind of job on so many GPUs"
Speeds = Mapping[tuple[str, int], Mapping[str, float]]  # by kind of job and GPUs: steps a second by GPU type


def imported(files: Sequence[File], shapes: Sequence[Shape]) -> Imported:
    tables: list[File] = [file for file in files if file.text.lstrip().startswith("{")]
    traces: list[File] = [file for file in files if not file.text.lstrip().startswith("{")]
    if len(tables) != 1 or not traces:
        raise TraceFault("A trace and the JSON file of throughputs are required, the one as well as the other.")
    types, speeds = throughputs(tables[0])
    shapes = shapes or [Shape(USUAL[0], USUAL[1], name) for name in types]
    strange = sorted({shape.gpu_type or "" for shape in shapes} - set(types))
    if strange:
        raise TraceFault(f"--nodes must name GPU types of the table ({', '.join(types)}), as in 6x4:{types[0]}; it has {strange[0] or 'none'}.")
    nodes = nodes_of(shapes, "")
    found = Imported(nodes, [{"name": NAME, "guaranteed": None}])
    for file in traces:
        _read(file, speeds, sorted({str(node["gpu_type"]) for node in nodes}), largest_of(nodes), found)
    return found


def throughputs(file: File) -> tuple[list[str], Speeds]:
    """The GPU types, and what each kind of job does in a second on so many of them, alone and together."""
    try:
        document = json.loads(file.text)
        found: dict[tuple[str, int], dict[str, float]] = {}
        types = [name for name in document if not name.endswith(APART)]
        for name in types:
            for kind, speeds in document[name].items():
                title, _, gpus = kind.removeprefix("(").removesuffix(")").rpartition(",")
                found.setdefault((title.strip().strip("'"), int(gpus)), {})[name] = _speed(speeds["null"])
    except json.JSONDecodeError as error:
        raise TraceFault(f"{file.name}, line {error.lineno}: {error.msg}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise TraceFault(f'{file.name} is not a table of Gavel\'s throughputs, such as {{"v100": {{"(\'A3C\', 1)": {{"null": 4.2}}}}}}.') from None
    if not types:
        raise TraceFault(f"{file.name} names no GPU type.")
    return types, found


def _speed(written: Any) -> float:
    found = float(written)
    if not 0 <= found < math.inf:
        raise ValueError(f"{found} is not a speed")
    return found


def _read(file: File, speeds: Speeds, types: Sequence[str], largest: int, found: Imported) -> None:
    for line, text in enumerate(file.text.splitlines(), 1):
        if not text.strip():
            continue
        values = text.split("\t")
        row = Row(file.name, line, dict(zip(COLUMNS, values, strict=False)))
        if len(values) != len(COLUMNS):
            raise row.bad(f"has {len(values)} values between tabs; a line of Gavel has {len(COLUMNS)}: {', '.join(COLUMNS)}")
        steps, gpus, at, slack = row.number("total_steps"), row.whole("scale_factor"), row.number("arrival_time"), row.number("SLO", -1)
        speed = {name: steps_a_second for name, steps_a_second in speeds.get((row.text("job_type"), gpus), {}).items() if steps_a_second > 0}
        if not gpus or not steps:
            found.left_out[NOTHING_ASKED if not gpus else "no steps to do"] += 1
        elif not any(name in speed for name in types):
            found.left_out[UNKNOWN] += 1
        else:
            found.jobs.append((at, _job(len(found.jobs), gpus, steps, speed, types, largest) | _due(steps / max(speed.values()), at, slack)))


def _job(place: int, gpus: int, steps: float, speed: Mapping[str, float], types: Sequence[str], largest: int) -> dict[str, Any]:
    workers, each = gang(gpus, largest)
    fastest = max(speed.values())
    return {
        "name": f"job-{place:06}",
        "quota": NAME,
        "roles": [role(workers, gpus=each)],
        "throughput": {name: round(speed.get(name, 0) / fastest, 6) for name in types},
        # Our assumption, as the trace names no costs: leaving a GPU and coming back takes no time and loses no work.
        "checkpoint": {"interval_s": 360, "save_s": 0, "restore_s": 0},
        "work_s": round(max(1.0, steps / fastest), 3),
    }


def _due(alone_s: float, at: float, slack: float) -> dict[str, Any]:
    """A deadline is so many times the run time alone on the fastest type; below 0 there is none."""
    return {"deadline": at + slack * alone_s} if slack > 0 else {}
