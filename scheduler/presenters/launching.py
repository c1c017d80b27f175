"""What a job starts, in words: for those who may steer it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.jobs.stored import probe_told


@dataclass(frozen=True, slots=True)
class LaunchTold:
    """`command` is a line as in a terminal, `shell` a script. `secrets` are variables and names; values are nowhere."""

    image: str
    command: str
    shell: str
    per: str
    workdir: str
    env: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...]
    simulated: str
    port: int | None = None
    idle_end_s: int | None = None
    in_place: bool = False
    ready: str = ""

    @property
    def says_nothing(self) -> bool:
        said = (self.image, self.command, self.shell, self.workdir, self.env, self.secrets, self.simulated)
        return not any((*said, self.port, self.idle_end_s, self.in_place, self.ready))


def launch_told(launch: Mapping[str, Any]) -> LaunchTold:
    command, simulated = launch.get("command"), launch.get("simulated")
    return LaunchTold(
        image=str(launch.get("image") or ""),
        command=shlex.join(map(str, command)) if isinstance(command, list) else "",
        shell=str(launch.get("shell") or ""),
        per="each of its GPUs" if launch.get("per") == "gpu" else "each worker",
        workdir=str(launch.get("workdir") or ""),
        env=_pairs(launch.get("env")),
        secrets=_pairs(launch.get("secrets")),
        simulated=json.dumps(simulated, ensure_ascii=False) if simulated else "",
        port=launch.get("port"),
        idle_end_s=launch.get("idle_end_s"),
        in_place=bool(launch.get("in_place")),
        ready=probe_told(launch["ready"]) if launch.get("ready") else "",
    )


def _pairs(found: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), str(value)) for key, value in found.items()) if isinstance(found, Mapping) else ()
