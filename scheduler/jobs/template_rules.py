"""Templates: what a job begins with, which of it may not be changed, and between which bounds the rest may be.

A description that names a template says only what is its own; the template says the rest. A locked value may be repeated and not changed. The shipped
templates name no GPU type and no path, so they serve any fleet.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError as SchemaError

from gpufleet.core.lengths import length_written
from scheduler.jobs.fields import steps_of, value_at, value_written
from scheduler.jobs.reading import Faults
from scheduler.jobs.schema import WAYS, Array

# What stands at the top of a description for a single role, and by which keys roles say the same.
IN_ROLES = {"gpus": ("gpus",), "workers": ("min", "max"), "gpu_types": ("gpu_types",)}
_ROLE = re.compile(r"roles\[(\d+)\]\.(\w+)")


@dataclass(frozen=True, slots=True)
class Template:
    """`ref` is what a description names: `notebook` for a shipped one, `acme/research:notebook` for one of a subtree."""

    ref: str
    title: str
    about: str = ""
    quota: str = ""  # the node whose subtree may use it; empty: every one
    version: int = 1
    body: Mapping[str, Any] = field(default_factory=dict)
    locked: tuple[str, ...] = ()
    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    public_id: str = ""

    @property
    def key(self) -> str:
        """What a job keeps of it: paths change when nodes move, and ids do not."""
        return self.public_id or self.ref

    @property
    def bounds(self) -> dict[str, str]:
        """What may be at each field, in words: `8 to 64`."""
        return {path: bound_said(path, limit) for path, limit in self.limits.items() if path not in self.locked}

    def completed(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The description with what the template says where it says nothing itself."""
        body = dict(self.body)
        if "roles" in raw:
            body = {key: value for key, value in body.items() if key not in ("gpus", "workers") or key in self.locked}
        elif "gpus" in raw or "workers" in raw:
            body = {key: value for key, value in body.items() if key != "roles" or any(path.startswith("roles") for path in self.locked)}
        if "array" in body and "array" in raw:
            body["array"] = self._array_left(body["array"], raw["array"])
        if "launch" in body and "launch" in raw:
            body["launch"] = self._launch_left(body["launch"], raw["launch"])
        whole: dict[str, Any] = _merged(body, raw)
        if "roles" in body and "roles" in raw:
            whole["roles"] = _merged_roles(body["roles"], raw["roles"])
        return whole

    def _array_left(self, body: Any, raw: Any) -> Any:
        """Who says in his own way how many it is takes the place of the template's way."""
        if not isinstance(body, Mapping) or not isinstance(raw, Mapping) or not any(way in raw for way in WAYS):
            return body
        return {key: value for key, value in body.items() if key not in WAYS or f"array.{key}" in self.locked}

    def _launch_left(self, body: Any, raw: Any) -> Any:
        """A command takes the place of the template's script, and a script that of its command."""
        if not isinstance(body, Mapping) or not isinstance(raw, Mapping):
            return body
        gone = {other for one, other in (("command", "shell"), ("shell", "command")) if raw.get(one) is not None}
        return {key: value for key, value in body.items() if key not in gone or f"launch.{key}" in self.locked}

    def faults(self, raw: Mapping[str, Any]) -> Faults:
        """What a completed description changes that is locked, or takes beyond its bounds."""
        found: Faults = {}
        for path in self.locked:
            wanted = value_at(self.body, steps_of(path))
            if value_at(raw, steps_of(path)) != wanted:
                found[path] = [f"The template {self.ref} keeps it at {_shown(wanted)}."]
        for path, limit in self.limits.items():
            for value, where in self._meant(path, raw):
                if value is not None and (said := _beyond(path, value, limit)):
                    found.setdefault(where, []).append(f"{said}, by the template {self.ref}.")
        return found

    def _meant(self, path: str, raw: Mapping[str, Any]) -> list[tuple[Any, str]]:
        """What a limit is about, in whichever way the description says it, and where it does: a number of GPUs stands at the top or in roles."""
        if path == "array.size":
            return [_counted(raw)]
        roles = raw.get("roles")
        if isinstance(roles, list) and path in IN_ROLES:
            return [
                (role.get(key), f"roles[{place}].{key}") for place, role in enumerate(roles) if isinstance(role, Mapping) for key in IN_ROLES[path]
            ]
        role = _ROLE.fullmatch(path)
        if role is None:
            return [(value_at(raw, steps_of(path)), path)]
        if not isinstance(roles, list):
            return [(raw.get(key), key) for key, parts in IN_ROLES.items() if role[2] in parts]
        # A template of one role bounds every role: a further one would be a way around it.
        alone = len(self.body.get("roles") or ()) <= 1
        places = range(len(roles)) if alone else [int(role[1])]
        return [(value_at(raw, steps_of(f"roles[{place}].{role[2]}")), f"roles[{place}].{role[2]}") for place in places]


def _counted(raw: Mapping[str, Any]) -> tuple[int | None, str]:
    """How many jobs an array comes to, whichever way it says so, and where it does."""
    array = raw.get("array")
    way = next((way for way in WAYS if isinstance(array, Mapping) and array.get(way) is not None), "size")
    try:
        return Array.model_validate(array).count, f"array.{way}"
    except SchemaError:  # which is told by itself
        return None, "array.size"


def bound_said(path: str, limit: Mapping[str, Any]) -> str:
    """As somebody reads it who is about to type: in the units of the field."""
    said = {key: value_written(path, limit[key]) for key in ("least", "most") if limit.get(key) is not None}
    words = []
    if len(said) == 2:
        words.append(f"{said['least']} to {said['most']}" if said["least"] != said["most"] else f"Always {said['least']}")
    elif said:
        words += [f"{word} {said[key]}" for key, word in (("least", "At least"), ("most", "At most")) if key in said]
    if limit.get("one_of"):
        words.append(f"One of {', '.join(value_written(path, one) for one in limit['one_of'])}")
    return "; ".join(words)


def _bound(path: str, value: Any) -> str:
    """As a fault says it: a length of time with its unit."""
    return length_written(value) if path.endswith("_s") and isinstance(value, int) else value_written(path, value)


def _beyond(path: str, value: Any, limit: Mapping[str, Any]) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and limit.get("least") is not None and value < limit["least"]:
        return f"At least {_bound(path, limit['least'])}"
    if number and limit.get("most") is not None and value > limit["most"]:
        return f"At most {_bound(path, limit['most'])}"
    allowed = limit.get("one_of")
    if allowed and not set(map(str, value if isinstance(value, list) else [value])) <= set(map(str, allowed)):
        return f"One of {', '.join(map(str, allowed))}"
    return ""


def _merged(body: Any, raw: Any) -> Any:
    if not isinstance(body, Mapping) or not isinstance(raw, Mapping):
        return raw
    return {key: _merged(body[key], raw[key]) if key in body and key in raw else raw.get(key, body.get(key)) for key in dict.fromkeys([*body, *raw])}


def _merged_roles(body: Any, raw: Any) -> Any:
    """Roles of the same name say the rest of each other."""
    if not isinstance(body, list) or not isinstance(raw, list):
        return raw
    by_name = {role.get("name", "worker"): role for role in body}
    return [_merged(by_name.get(str(role.get("name", "worker")), {}), role) if isinstance(role, Mapping) else role for role in raw]


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


HOUR = 3600
SHIPPED = (
    Template(
        "notebook",
        "Notebook",
        "One GPU to try things out, ended after eight hours, or two idle ones",
        body={
            "name": "notebook",
            "class": "interactive",
            "gpus": 1,
            "limit_s": 8 * HOUR,
            "launch": {
                "shell": 'JUPYTER_TOKEN=$GPUFLEET_ACCESS_TOKEN exec jupyter lab --ip=127.0.0.1 --port="$GPUFLEET_PORT" --no-browser',
                "port": 8888,
                "idle_end_s": 2 * HOUR,
            },
        },
        locked=("class",),
        limits={"gpus": {"least": 1, "most": 2}, "workers": {"most": 1}, "limit_s": {"most": 24 * HOUR}},
    ),
    Template(
        "fine-tune",
        "Fine-tune",
        "One GPU for a few hours, with checkpoints",
        body={
            "name": "fine-tune",
            "gpus": 1,
            "estimate_s": 4 * HOUR,
            "limit_s": 12 * HOUR,
            "retries": 2,
            "checkpoint": {"interval_s": 1800, "save_s": 30, "restore_s": 60},
            "launch": {"command": ["python", "finetune.py"]},
        },
    ),
    Template(
        "serving",
        "Serving replica",
        "Eight GPUs of one NVLink island, tensor-parallel",
        body={
            "name": "serving",
            "class": "inference",
            "gpus": 8,
            "topology": {"required": "node", "tp_group": 8},
            "grace_s": 60,
            "launch": {"command": ["vllm", "serve", "--tensor-parallel-size", "8"]},
        },
        locked=("class", "topology.tp_group"),
        limits={"gpus": {"least": 8, "most": 8}},
    ),
    Template(
        "elastic-training",
        "Elastic training",
        "64 GPUs, data-parallel; runs with 32 and grows again",
        body={
            "name": "elastic-training",
            "roles": [{"name": "worker", "min": 4, "max": 8, "step": 1, "gpus": 8}],
            "estimate_s": 24 * HOUR,
            "limit_s": 72 * HOUR,
            "retries": 3,
            "checkpoint": {"interval_s": 1800, "save_s": 60, "restore_s": 120},
            "launch": {"command": ["torchrun", "train.py"], "per": "gpu"},
        },
        limits={"roles[0].max": {"most": 64}},
    ),
    Template(
        "mig-replica",
        "MIG replica",
        "A slice of a GPU for a small model",
        body={
            "name": "mig-replica",
            "class": "inference",
            "roles": [{"name": "worker", "mig": "1g.10gb"}],
            "sharing": "mig",
            "grace_s": 30,
            "launch": {"command": ["python", "serve.py"]},
        },
        locked=("class", "sharing"),
    ),
    Template(
        "sweep",
        "Sweep",
        "Ten jobs alike, each with its own index",
        body={
            "name": "sweep",
            "gpus": 1,
            "estimate_s": 2 * HOUR,
            "limit_s": 6 * HOUR,
            "array": {"size": 10},
            "launch": {"command": ["python", "train.py"]},
        },
        limits={"array.size": {"least": 1, "most": 500}},
    ),
)
SHIPPED_BY_REF = {template.ref: template for template in SHIPPED}
