"""How a job is described: the one statement of its keys, with their types, bounds, defaults and words, for the API, files and forms.

Names are those of the scenario format, so that a job reads the same when it is submitted, planned and exported. Unknown keys are refused. What only
the engine can judge (levels, profiles, combinations) is checked by the engine's own reader, in `scheduler.services.jobs.submission`.
"""

from datetime import UTC, datetime
from functools import cached_property
from math import isfinite, prod
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gpufleet.core.strict import Strict
from scheduler.jobs.image import LONGEST, PATTERN, image_fault
from scheduler.jobs.shown import Shown
from scheduler.jobs.stored import IN_IMAGE, PREEMPTIBLE, READY_FAILURES, READY_PERIOD, READY_TIMEOUT, READY_WAYS, replicas_fault, serves_in_replicas
from scheduler.loop.policy import DEFAULT_GRACE_SECONDS
from scheduler.scenarios.kinds import MOST_WORKERS
from scheduler.scenarios.nodes import MOST_GPUS

MOST_ELEMENTS = 10_000
MOST_TYPES = 50
MOST_ROLES = 20
# In which an array says how many it is.
WAYS = ("size", "values", "grid")
LONGEST_SECONDS = 366 * 86_400


def _number(value: float) -> float | int:
    """Whole numbers without a point, as people write them."""
    return int(value) if isfinite(value) and value == int(value) else value


Number = Annotated[float, AfterValidator(_number)]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_SECONDS, allow_inf_nan=False), AfterValidator(_number)]
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def _within_reach(moment: datetime) -> datetime:
    """Far enough from the ends of the calendar to be told in any time zone."""
    if not EARLIEST <= moment <= LATEST:
        raise ValueError("The year must be between 1970 and 8999.")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_within_reach)]
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120)]
WORD, VARIABLE = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$", r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"
Word = Annotated[str, StringConstraints(pattern=WORD)]
Variable = Annotated[str, StringConstraints(pattern=VARIABLE)]
Text = Annotated[str, StringConstraints(max_length=4000)]


def _image(text: str) -> str:
    if fault := image_fault(text):
        raise ValueError(fault)
    return text


Image = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST), AfterValidator(_image), Field(json_schema_extra={"pattern": PATTERN})]


def broken_rule(field: str, message: str) -> PydanticCustomError:
    """A rule between several keys, told at the one that is to be changed."""
    return PydanticCustomError("rule", message, {"field": field})


def _plainly(value: float) -> float | int:
    """As people write it: of at most three decimals, and whole ones without a point."""
    if round(value, 3) != value:
        raise ValueError("At most three decimals are allowed, such as 1.5 or 0.125.")
    return _number(value)


Processors = Annotated[
    float,
    Field(ge=0, le=100_000, allow_inf_nan=False, description="Processors of each worker: 4, or 1.5, with at most three decimals."),
    AfterValidator(_plainly),
]


# What several parts of a description, or what changes one, have in common.
Count = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
Least = Annotated[int, Field(ge=0, le=MOST_WORKERS)]
Gpus = Annotated[int | None, Field(ge=0, le=MOST_GPUS)]
GpuMemory = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False), AfterValidator(_number)]
GpuShare = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), AfterValidator(_number)]
HostMemory = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False), AfterValidator(_number)]
Types = Annotated[list[Word] | None, Field(max_length=MOST_TYPES)]
Priority = Annotated[int, Field(ge=-1000, le=1000), Shown("Priority", "In its class and queue; higher goes first.")]
RunTime = Annotated[int | None, Field(ge=1, le=LONGEST_SECONDS)]
Estimate = Annotated[RunTime, Shown("Estimated run time", "Such as 90m, 2h, 1d, or seconds; at speed 1.")]
Limit = Annotated[RunTime, Shown("Time limit", "Such as 90m, 12h or 1d. A limit lets it start in gaps.")]
NotBefore = Annotated[Moment | None, Shown("Not before (UTC)")]
Deadline = Annotated[Moment | None, Shown("Deadline (UTC)", "The job fails if it has not started by then.")]
DEFER_CHOICES = (("price", "To the lowest price"), ("carbon", "To the least CO2"))
Defer = Annotated[Literal["price", "carbon"] | None, Shown("Defer", "To a better hour, inside its deadline.", choices=DEFER_CHOICES, blank="No")]
Retries = Annotated[int, Field(ge=0, le=1000), Shown("Retries", "Restarts after failures of its own.")]
Labels = Annotated[dict[Word, Text], Field(max_length=50), Shown("Labels", "One key=value a line.")]
CostCentre = Annotated[str, StringConstraints(max_length=40), Shown("Cost centre")]


class Part(Strict):
    model_config = ConfigDict(extra="forbid")


class Placing(Part):
    """Where workers stand together."""

    required: Annotated[Word | None, Shown("Required topology level", "Such as leaf or node: the job waits for that.")] = Field(
        default=None, description="All in one domain of this level: a level of the fleet, `cluster` or `node`."
    )
    preferred: Annotated[Word | None, Shown("Preferred topology level", "As deep as possible; the job does not wait for it.")] = Field(
        default=None, description="Rather so, as deep as possible."
    )
    tp_group: Annotated[int | None, Shown("GPUs per tensor-parallel group", "Consecutive ranks that share one NVLink island.")] = Field(
        default=None, ge=1, le=4096, description="So many GPUs in consecutive ranks share one NVLink island."
    )
    span_clusters: bool = Field(default=False, description="May run on several clusters at once, where their back-ends can do that.")


class RoleForm(Part):
    """One kind of worker. It asks for whole GPUs, or for one kind of part."""

    name: Annotated[Word, Shown("Role")] = "worker"
    min: Annotated[Least, Shown("Workers at least")] = 1
    max: Annotated[Count | None, Shown("Workers at most", "More than at least: elastic.")] = Field(
        default=None, description="More than `min`: elastic."
    )
    step: Annotated[Count, Shown("In steps of")] = 1
    desired: Annotated[Least | None, Shown("Replicas wanted", "Of a service; empty: up to most.")] = Field(
        default=None, description="Of a service: how many of them are wanted now, from `min` to `max`. Null: as many as find room."
    )
    gpus: Annotated[Gpus, Shown("GPUs each", "Whole ones, on one node.")] = Field(default=None, description="Whole GPUs of each worker, on one node.")
    mig: Annotated[Word | None, Shown("MIG profile", "Instead of whole GPUs: 1g.10gb.")] = Field(
        default=None, description="A MIG profile, such as 1g.10gb."
    )
    gpu_memory_gb: Annotated[GpuMemory | None, Shown("GPU memory, GB", "Instead of whole GPUs: a part by its memory.")] = Field(
        default=None, description="A part by its memory."
    )
    gpu_share: Annotated[GpuShare | None, Shown("Share of a GPU", "Instead of whole GPUs: 0.25.")] = Field(
        default=None, description="A part by its share of the GPU."
    )
    devices: Annotated[int | None, Shown("Parts per worker", "Each on another GPU of one node.")] = Field(
        default=None, ge=1, le=MOST_GPUS, description="So many such parts, each on another GPU of one node."
    )
    gpu_types: Annotated[Types, Shown("GPU types", "Empty: any that suits.")] = None
    cpus: Annotated[Processors, Shown("CPUs each")] = 0
    host_memory_gb: Annotated[HostMemory, Shown("Host memory each, GB")] = 0
    topology: Placing | None = None

    @model_validator(mode="after")
    def in_range(self) -> "RoleForm":
        most = self.max or max(self.min, 1)
        if self.desired is not None and (fault := replicas_fault(self.desired, least=self.min, most=most, step=self.step)):
            raise broken_rule("desired", fault)
        return self


class Saving(Part):
    """How it saves its work."""

    interval_s: Annotated[Seconds | None, Shown("Checkpoint interval")] = None
    save_s: Annotated[Seconds, Shown("Time to save")] = 0
    restore_s: Annotated[Seconds, Shown("Time to restore")] = 0


Port = Annotated[int, Field(ge=1, le=65_535)]
HTTP_PATH = r"^/[!-~]{0,199}$"


class HttpProbe(Part):
    """A GET of the worker's own machine that must be answered with a status from 200 to 399; it follows no redirect."""

    port: Annotated[Port | None, Shown("HTTP port", "Empty: the one in GPUFLEET_READY_PORT.")] = Field(
        default=None, description="On the worker's own machine. Null: a free one, which each worker finds in GPUFLEET_READY_PORT."
    )
    path: Annotated[str, Shown("HTTP path", "Of a GET that answers once it can serve.", example="/health"), Field(pattern=HTTP_PATH)] = Field(
        default="/", description="With its query, in ASCII and without spaces."
    )


class TcpProbe(Part):
    """A connection to the worker's own machine that must be accepted."""

    port: Annotated[Port | None, Shown("TCP port", "Instead: it accepts connections.")] = Field(
        default=None, description="On the worker's own machine. Null: a free one, which each worker finds in GPUFLEET_READY_PORT."
    )


class Ready(Part):
    """How each worker is asked whether it can serve: one of `http`, `tcp` and `command`, asked beside the worker on its machine."""

    http: HttpProbe | None = None
    tcp: TcpProbe | None = None
    command: Annotated[list[Text] | None, Shown("Ready command", "Instead: it exits with 0. No shell.", kind="command")] = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="A list of arguments, started as the worker is: its user, folder and environment. It is ready when this exits with 0.",
    )
    period_s: Annotated[int, Shown("Asked every")] = Field(default=READY_PERIOD, ge=1, le=3600, description="Asked so often.")
    timeout_s: Annotated[int, Shown("Answers within")] = Field(
        default=READY_TIMEOUT, ge=1, le=300, description="Without an answer by then it counts as not ready."
    )
    failures: Annotated[int, Shown("Failures in a row", "After so many it is not ready any more.")] = Field(
        default=READY_FAILURES, ge=1, le=100, description="So many in a row, and a worker that was ready is not any more."
    )

    @model_validator(mode="after")
    def one_way(self) -> "Ready":
        stated = [way for way in READY_WAYS if getattr(self, way) is not None]
        if len(stated) != 1:
            field = stated[-1] if stated else "command"
            raise broken_rule("tcp.port" if field == "tcp" else field, "State one of http, tcp and command.")
        return self


class Launch(Part):
    """What is started for each worker. A list of arguments; a shell only in so many words."""

    command: Annotated[list[Text] | None, Shown("Command", "Arguments as in a terminal; no shell.", kind="command", example="python train.py")] = (
        Field(default=None, min_length=1, max_length=1000)
    )
    shell: Annotated[Text | None, Shown("Shell script", "Instead of a command.", kind="code")] = Field(default=None, min_length=1)
    image: Annotated[Image | None, Shown("Image", "registry/name:tag or …@sha256:…. Empty: what its nodes have.", example="registry/name:tag")] = (
        Field(default=None, description="What it runs in: registry/name:tag or …@sha256:…. Only where the back-end runs images.")
    )
    per: Annotated[Literal["worker", "gpu"], Shown("One process per", choices=(("worker", "Worker"), ("gpu", "GPU")), blank="Worker")] = Field(
        default="worker", description="One process a worker, or one for each of its GPUs."
    )
    env: Annotated[dict[Variable, Text], Shown("Environment", "One KEY=value a line.")] = Field(default_factory=dict, max_length=1000)
    secrets: Annotated[dict[Variable, Word], Shown("Secrets", "One VARIABLE=name-of-the-secret a line; the operator keeps them.")] = Field(
        default_factory=dict, max_length=100, description="Variables by the name of a secret that the operator keeps."
    )
    workdir: Annotated[Text | None, Shown("Working directory", example="/data/…")] = Field(
        default=None, pattern=r"^/", description="An absolute path."
    )
    port: Annotated[int | None, Shown("Port", "That it listens on, as a notebook does.", example="8888")] = Field(
        default=None, ge=1024, le=65_535, description="That its first worker listens on, as a notebook does: the console says how to reach it."
    )
    idle_end_s: Annotated[int | None, Shown("Stop when idle for", "Such as 1h without activity of its GPUs.")] = Field(
        default=None,
        ge=300,
        le=86_400,
        description="Ended after so long without activity of its GPUs, in whole minutes. Missing readings never end it.",
    )
    in_place: Annotated[
        bool | None,
        Shown(
            "Resized in place",
            "Its processes meet again by themselves, as torchrun's do.",
            choices=(("true", "Yes"), ("false", "No: saves, stops and restarts")),
            blank="If it is a service",
        ),
    ] = Field(
        default=None,
        description="Its processes meet again by themselves when a worker joins, leaves or is lost, as torchrun's do. It is resized in place, and "
        "its healthy workers stay. Unless stated: true of a service, as its replicas need not meet.",
    )
    ready: Ready | None = Field(default=None, description="How each worker is asked whether it can serve. Null: it is ready once it has started.")
    simulated: Annotated[dict[str, Any] | None, Shown("Behaviour", "How the job behaves there, as JSON.", kind="json")] = Field(
        default=None, description="For the simulated back-end: how the job behaves."
    )

    @model_validator(mode="after")
    def one_of_both(self) -> "Launch":
        if self.command is not None and self.shell is not None:
            raise broken_rule("shell", "State command or shell, not both.")
        return self


def _as_text(value: Any) -> Any:
    """A parameter may be written as a number or as true; a job gets it as a text, as it gets all its variables."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) and isfinite(value) else value


Parameter = Annotated[
    Text, BeforeValidator(_as_text), WithJsonSchema({"anyOf": [{"type": "string", "maxLength": 4000}, {"type": "number"}, {"type": "boolean"}]})
]


class Array(Part):
    """Many jobs alike: so many, one for each set of variables, or a sweep over the values of some."""

    size: Annotated[int | None, Shown("Array size")] = Field(default=None, ge=1, le=MOST_ELEMENTS)
    values: Annotated[list[dict[Variable, Text]] | None, Shown("Variable sets", "One set of variables a line: LR=0.1 SEED=7.", kind="sets")] = Field(
        default=None, min_length=1, max_length=MOST_ELEMENTS
    )
    grid: Annotated[
        dict[Variable, Annotated[list[Parameter], Field(min_length=1, max_length=MOST_ELEMENTS)]] | None,
        Shown("Sweep", "A variable a line with its values: LR=0.1 0.01 0.001.", kind="grid"),
    ] = Field(default=None, min_length=1, max_length=20, description="A sweep: the values that each variable takes.")
    combine: Annotated[
        Literal["product", "zip"],
        Shown("Combination", choices=(("product", "Every combination"), ("zip", "First with first, …")), blank="Every combination"),
    ] = Field(
        default="product",
        description="Of a grid: each combination, the last variable changing first; or the first values together, then the second.",
    )

    @model_validator(mode="after")
    def one_way(self) -> "Array":
        stated = [way for way in WAYS if getattr(self, way) is not None]
        if len(stated) != 1:
            raise broken_rule(stated[-1] if stated else "size", "State one of size, values and grid.")
        if self.grid is None:
            return self
        lengths = [len(values) for values in self.grid.values()]
        if self.combine == "zip" and len(set(lengths)) > 1:
            raise broken_rule("grid", f"To go together the lists must be equally long; they have {', '.join(map(str, lengths))}.")
        if self.count > MOST_ELEMENTS:
            raise broken_rule("grid", f"It comes to {self.count:,} jobs; at most {MOST_ELEMENTS:,}.")
        return self

    @property
    def count(self) -> int:
        if self.size is not None:
            return self.size
        if self.grid is None:
            return len(self.values or ())
        lengths = [len(values) for values in self.grid.values()]
        return prod(lengths) if self.combine == "product" else lengths[0]

    def own(self, place: int) -> dict[str, str]:
        """The variables of one element."""
        if self.grid is None:
            return self.values[place] if self.values is not None else {}
        found = {}
        for name, values in reversed(self.grid.items()):
            if self.combine == "product":
                place, here = divmod(place, len(values))
            else:
                here = place
            found[name] = values[here]
        return dict(reversed(found.items()))


class After(Part):
    """A job that must have ended first."""

    job: Word
    condition: Literal["completed", "ended"] = Field(default="completed", alias="if", description="Only if it completed, or in any way.")


class Range(Part):
    """How many workers of a role."""

    min: Least
    max: Count | None = Field(default=None, description="More than `min`: elastic. Null: as many as `min`.")


class JobChange(Part):
    """What may be changed of a job that was submitted. What is not named stays as it is; null takes a limit or a time away."""

    name: Name = "job"
    priority: Priority = 50
    estimate_s: Estimate = None
    limit_s: Limit = Field(default=None, description="Counted from the start of the run that goes on.")
    not_before: NotBefore = None
    deadline: Deadline = None
    defer: Defer = None
    retries: Retries = 0
    labels: Labels = Field(default_factory=dict, description="All of them as they shall be.")
    cost_centre: CostCentre = ""
    workers: dict[Word, Range] | None = Field(default=None, max_length=MOST_ROLES, description="The range of each role that is named.")
    reason: Annotated[str, StringConstraints(max_length=280)] = Field(default="", description="Kept in the job's history and in the audit log.")


class JobDescription(Part):
    """A job as it is submitted."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: Annotated[Name, Shown("Name")]
    quota: Annotated[str, StringConstraints(min_length=1, max_length=500), Shown("Team", "Type to search; the path of its quota.", kind="quota")] = (
        Field(description="The path of a leaf of the quota tree.")
    )
    job_class: Annotated[
        Literal["batch", "interactive", "inference"], Shown("Class", "Batch, unless the team has a default class.", blank="Default of the team")
    ] = Field(default="batch", alias="class")
    priority: Priority = 50
    preemptible: Annotated[
        bool | Literal["when_borrowed"] | None,
        Shown("Preemptible", choices=(("true", "Always"), ("when_borrowed", "When borrowed"), ("false", "Never")), blank="By its class"),
    ] = Field(default=None, description="Unless stated: inference when_borrowed, others true.")
    gpus: Annotated[Gpus, Shown("GPUs of each worker", "Whole ones, on one node.")] = Field(
        default=None, description="Short for one role: whole GPUs of each worker."
    )
    workers: Annotated[Count | None, Shown("Workers", example="1")] = Field(default=None, description="With gpus: how many workers.")
    gpu_types: Annotated[Types, Shown("GPU types", "Empty: any that suits.", kind="types")] = Field(
        default=None, description="For roles that name none."
    )
    roles: list[RoleForm] | None = Field(default=None, min_length=1, max_length=MOST_ROLES)
    topology: Placing | None = None
    sharing: Annotated[
        Literal["exclusive", "mig", "mps", "timeslice"] | None,
        Shown("Sharing", choices=(("exclusive", "Whole GPUs"), ("mig", "MIG"), ("mps", "MPS"), ("timeslice", "Time slice"))),
    ] = None
    node_labels: Annotated[dict[Word, Text] | None, Shown("Node labels", "One key=value a line.")] = Field(default=None, max_length=50)
    needs: Annotated[dict[Word, Number] | None, Shown("Node attributes", "At least; one key=number a line: pcie_gbps=40 (GB/s).")] = Field(
        default=None, max_length=50
    )
    tolerates_suspect: Annotated[bool | None, Shown("Allow suspect nodes")] = None
    preemption_delay_s: Annotated[Seconds | None, Shown("Preempts nothing for")] = None
    grace_s: Annotated[Seconds, Shown("Grace", "Between the signal and the end by force.")] = Field(
        default=DEFAULT_GRACE_SECONDS, description="Between the signal and the end by force."
    )
    throughput: Annotated[
        dict[Word, Number] | None, Shown("Relative speed by type", "One TYPE=factor a line; 0: never there. Empty: its template's.")
    ] = Field(default=None, description="Relative speed by GPU type, of which the estimate is for 1; 0: can't run there.")
    type_choice: Annotated[
        Literal["fastest", "cheapest", "stated"] | None,
        Shown(
            "GPU type choice",
            "Of the types that it accepts.",
            choices=(("fastest", "Fastest"), ("cheapest", "Cheapest for the work"), ("stated", "In the stated order")),
            blank="As the fleet",
        ),
    ] = Field(default=None, description="Which of the accepted GPU types it gets first if several are free; null: as the fleet-wide rule says.")
    checkpoint: Annotated[Saving | None, Shown("Checkpoints", choices=(("null", "Can't be moved"),), blank="As stated below")] = Field(
        default=None, description="null in so many words: it can't be moved."
    )
    work_s: Annotated[Seconds | None, Shown("Simulated work", "How long it computes there.")] = Field(
        default=None, description="For the simulated back-end: how long it computes."
    )
    estimate_s: Estimate = None
    limit_s: Limit = Field(default=None, description="Ended after so long a run.")
    not_before: NotBefore = None
    deadline: Deadline = Field(default=None, description="Not started by then, it has failed.")
    defer: Defer = Field(
        default=None,
        description="Started in the hours before its deadline in which its energy costs least (price) or stands for the least CO2 (carbon). A batch "
        "job with deadline and estimate_s.",
    )
    retries: Retries = 0
    labels: Labels = Field(default_factory=dict)
    cost_centre: CostCentre = ""
    launch: Launch = Launch()
    array: Array | None = None
    after: Annotated[list[After], Shown("Depends on", "One job a line: j-17, or j-17 ended for any end.", kind="after")] = Field(
        default_factory=list, max_length=100
    )
    hold: Annotated[bool, Shown("On hold")] = False
    draft: Annotated[bool, Shown("Draft")] = False
    template: Annotated[str, StringConstraints(max_length=600), Shown("Template")] = Field(
        default="",
        description="What it begins with: a shipped template such as notebook, or one of a subtree: org/nlp:serve, or org/nlp:serve@3.",
    )

    @model_validator(mode="after")
    def whole(self) -> "JobDescription":
        if (self.roles is None) == (self.gpus is None):
            raise broken_rule("gpus", "State roles, or gpus and workers for a single one.")
        if self.roles is not None and self.workers is not None:
            raise broken_rule("workers", "workers goes with gpus; roles say it with min and max.")
        if self.deadline is not None and self.not_before is not None and self.deadline <= self.not_before:
            raise broken_rule("deadline", "The deadline must lie after not_before.")
        return self

    def due_after(self, moment: datetime) -> bool:
        """Whether its deadline still lies ahead."""
        return self.deadline is None or self.deadline > moment

    @cached_property
    def spec(self) -> dict[str, Any]:
        """What the job's row keeps, in the one form of `scheduler.jobs.stored`: the very value that was judged."""
        roles = self.roles or [RoleForm(min=self.workers or 1, gpus=self.gpus)]
        document: dict[str, Any] = {"roles": [_spelt(role, self.gpu_types) for role in roles], "grace_s": self.grace_s}
        for key in ("topology", "sharing", "node_labels", "needs", "tolerates_suspect", "preemption_delay_s", "throughput", "type_choice", "work_s"):
            value = getattr(self, key)
            if value is not None:
                document[key] = value.model_dump(exclude_none=True, exclude_defaults=True) if isinstance(value, Part) else value
        if "checkpoint" in self.model_fields_set:
            document["checkpoint"] = None if self.checkpoint is None else self.checkpoint.model_dump(exclude_none=True)
        if self.launch.image is not None:
            document[IN_IMAGE] = True
        return document

    @property
    def launch_column(self) -> dict[str, Any]:
        """What the job's row keeps of what it starts."""
        kept = self.launch.model_dump(exclude_none=True, exclude_defaults=True)
        if self.launch.in_place is None and serves_in_replicas(self.job_class, self.spec):
            kept["in_place"] = True
        return kept

    @property
    def preemptible_column(self) -> str:
        chosen = self.preemptible
        if chosen is None:
            chosen = "when_borrowed" if self.job_class == "inference" else True
        return next(kept for kept, said in PREEMPTIBLE.items() if said == chosen)


def _spelt(role: RoleForm, gpu_types: list[str] | None) -> dict[str, Any]:
    document = role.model_dump(exclude_none=True, exclude_defaults=True) | {"name": role.name, "min": role.min}
    if gpu_types and not role.gpu_types:
        document["gpu_types"] = list(gpu_types)
    return document
