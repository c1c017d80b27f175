"""The description of a job, from a file and from flags. Whether it makes sense is for the console to say: it has the one schema."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gpufleet.client import USAGE, ClientError
from gpufleet.core.lengths import seconds_read


class _Twice(yaml.constructor.ConstructorError):
    """A key that its mapping has already."""


class _Loader(yaml.SafeLoader):
    """Times stay as they are written: what they mean, and that they need a zone, is for the console to say. No key is there twice."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise _Twice(None, None, f"{key.value} is stated twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


NONE = "none"
_WHETHER = {"true": True, "false": False}  # any other word goes as it is: which there are is for the console to say


def documents(name: str) -> list[dict[str, Any]]:
    """The descriptions in a YAML or JSON file; `-` is standard input."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as fault:
        raise ClientError(USAGE, f"{name} can't be read: {getattr(fault, 'strerror', None) or fault}.") from fault
    try:
        found = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        if isinstance(fault, _Twice):
            raise ClientError(USAGE, f"{name}{where}: {fault.problem}.") from fault
        raise ClientError(USAGE, f"{name} is not valid YAML{where}: {getattr(fault, 'problem', None) or fault}.") from fault
    if not found:
        raise ClientError(USAGE, f"{name} describes no job.")
    for document in found:
        if not isinstance(document, dict):
            raise ClientError(USAGE, f"{name} describes no job: it holds a {type(document).__name__}, not keys with values.")
    return found


def as_yaml(description: dict[str, Any]) -> str:
    """As people write it, to be changed and submitted again."""
    told: str = yaml.safe_dump(description, sort_keys=False, allow_unicode=True, width=100)
    return told


def described(document: dict[str, Any], asked: argparse.Namespace, command: Sequence[str]) -> dict[str, Any]:
    """A description with what the flags say in its place."""
    found = dict(document)
    stated = {"template": asked.template, "name": asked.name, "quota": asked.quota, "class": asked.job_class, "priority": asked.priority}
    stated |= {"preemptible": _WHETHER.get(asked.preemptible, asked.preemptible), "not_before": asked.not_before, "deadline": asked.deadline}
    stated |= {"defer": asked.defer, "type_choice": asked.type_choice}
    found |= {key: value for key, value in stated.items() if value is not None}
    lengths = {"estimate_s": asked.estimate, "limit_s": asked.limit}
    found |= {key: seconds(length) for key, length in lengths.items() if length is not None}
    if asked.draft:
        found["draft"] = True
    if asked.labels:
        found["labels"] = {**found.get("labels", {}), **_pairs(asked.labels, "--label")}
    if asked.speeds:
        found["throughput"] = {**found.get("throughput", {}), **_speeds(asked.speeds)}
    if asked.after:
        found["after"] = [*found.get("after", []), *({"job": name} for name in asked.after)]
    if asked.array is not None or asked.params:
        found["array"] = _array(asked)
    _shape(found, asked)
    launch = dict(found.get("launch") or {})
    if command:
        launch["command"] = list(command)
    if asked.env:
        launch["env"] = {**launch.get("env", {}), **_pairs(asked.env, "--env")}
    if asked.secrets:
        launch["secrets"] = {**launch.get("secrets", {}), **_pairs(asked.secrets, "--secret")}
    if asked.image:
        launch["image"] = asked.image
    if asked.workdir:
        launch["workdir"] = asked.workdir
    if launch:
        found["launch"] = launch
    return found


def _array(asked: argparse.Namespace) -> dict[str, Any]:
    if asked.array is not None and asked.params:
        raise ClientError(USAGE, "Say --array or --param, not both.")
    if not asked.params:
        return {"size": asked.array}
    grid = {name: values.split(",") for name, values in _pairs(asked.params, "--param").items()}
    return {"grid": grid, **({"combine": "zip"} if asked.zip else {})}


def changes(asked: argparse.Namespace) -> dict[str, Any]:
    """What the flags change of a job that was submitted, with the keys of its description."""
    plain = {"name": asked.name, "priority": asked.priority, "retries": asked.retries, "cost_centre": asked.cost_centre}
    found = {key: value for key, value in plain.items() if value is not None}
    lengths = {"estimate_s": asked.estimate, "limit_s": asked.limit}
    found |= {key: None if length == NONE else seconds(length) for key, length in lengths.items() if length is not None}
    times = {"not_before": asked.not_before, "deadline": asked.deadline, "defer": asked.defer}
    found |= {key: None if moment == NONE else moment for key, moment in times.items() if moment is not None}
    if asked.labels:
        found["labels"] = _pairs(asked.labels, "--label")
    if asked.workers:
        ranges = {role: _workers(count) for role, count in _pairs(asked.workers, "--workers", "ROLE=COUNT, such as worker=4 or worker=2-8").items()}
        found["workers"] = {role: {"min": least, "max": most} for role, (least, most) in ranges.items()}
    return found


def _shape(found: dict[str, Any], asked: argparse.Namespace) -> None:
    """Flags speak of the first role, or of the job's only one."""
    least, most = _workers(asked.workers) if asked.workers is not None else (None, None)
    if asked.gpu_types:
        found["gpu_types"] = asked.gpu_types
    if not found.get("roles") and not asked.mig and least == most:
        if asked.gpus is not None:
            found["gpus"] = asked.gpus
        if least is not None:
            found["workers"] = least
        return
    # Elastic jobs, parts of GPUs and jobs that state roles say it there.
    only = {"name": "worker", "min": found.pop("workers", 1), **({"gpus": found.pop("gpus")} if "gpus" in found else {})}
    roles = [dict(role) for role in found.get("roles") or [only]]
    first = roles[0]
    if asked.gpus is not None:
        first["gpus"] = asked.gpus
    if asked.mig:
        first.pop("gpus", None)
        first["mig"] = asked.mig
        found.setdefault("sharing", "mig")
    if least is not None:
        first["min"], first["max"] = least, most
    found["roles"] = roles


def _workers(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    if not least.isdigit() or (most and not most.isdigit()):
        raise ClientError(USAGE, f"--workers {text}: write a number such as 4, or least and most such as 2-8.")
    return int(least), int(most or least)


def seconds(text: str) -> int:
    """`90m`, `2h`, `1.5d`, or plain seconds."""
    found = seconds_read(text)
    if found is None:
        raise ClientError(USAGE, f"{text!r} is not a duration; write 90m, 2h, 1d, or seconds.")
    return int(found)


def _speeds(words: Sequence[str]) -> dict[str, float]:
    try:
        return {name: float(factor) for name, factor in _pairs(words, "--speed").items()}
    except ValueError as fault:
        raise ClientError(USAGE, f"--speed {' '.join(words)}: write TYPE=FACTOR, such as A100-SXM-40GB=0.45.") from fault


def _pairs(words: Sequence[str], flag: str, shape: str = "key=value") -> dict[str, str]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ClientError(USAGE, f"{flag} {word}: write {shape}.")
        pairs[key] = value
    return pairs
