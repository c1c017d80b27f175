"""How a job is described: one schema for the API, files of the command line, and forms.

Names are those of the scenario format, so that a job reads the same when it is submitted, planned and exported. Unknown keys are refused. What only
the engine can judge (levels, profiles, combinations) is checked by the engine's own reader, in `scheduler.services.jobs.submission`.
"""

from datetime import UTC, datetime
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
from scheduler.loop.policy import DEFAULT_GRACE_SECONDS

MOST_ELEMENTS = 10_000
MOST_TYPES = 50
# In which an array says how many it is.
WAYS = ("size", "values", "grid")
# In `Job.spec`, which the engine's snapshot reads: whether `Job.launch` names an image. No key of a description.
IN_IMAGE = "in_image"
LONGEST_SECONDS = 366 * 86_400
Seconds = Annotated[float, Field(ge=0, le=LONGEST_SECONDS, allow_inf_nan=False)]
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


class Part(Strict):
    model_config = ConfigDict(extra="forbid")


class Placing(Part):
    """Where workers stand together."""

    required: Word | None = Field(default=None, description="All in one domain of this level: a level of the fleet, `cluster` or `node`.")
    preferred: Word | None = Field(default=None, description="Rather so, as deep as possible.")
    tp_group: int | None = Field(default=None, ge=1, le=4096, description="So many GPUs in consecutive ranks share one NVLink island.")
    span_clusters: bool = Field(default=False, description="May run on several clusters at once, where their back-ends can do that.")


class RoleForm(Part):
    """One kind of worker. It asks for whole GPUs, or for one kind of part."""

    name: Word = "worker"
    min: int = Field(default=1, ge=0, le=100_000)
    max: int | None = Field(default=None, ge=1, le=100_000, description="More than `min`: elastic.")
    step: int = Field(default=1, ge=1, le=100_000)
    gpus: int | None = Field(default=None, ge=0, le=64, description="Whole GPUs of each worker, on one node.")
    mig: Word | None = Field(default=None, description="A MIG profile, such as 1g.10gb.")
    gpu_memory_gb: float | None = Field(default=None, gt=0, le=100_000, allow_inf_nan=False, description="A part by its memory.")
    gpu_share: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False, description="A part by its share of the GPU.")
    devices: int | None = Field(default=None, ge=1, le=64, description="So many such parts, each on another GPU of one node.")
    gpu_types: list[Word] | None = Field(default=None, max_length=MOST_TYPES)
    cpus: Processors = 0
    host_memory_gb: float = Field(default=0, ge=0, le=1_000_000, allow_inf_nan=False)
    topology: Placing | None = None


class Saving(Part):
    """How it saves its work."""

    interval_s: Seconds | None = None
    save_s: Seconds = 0
    restore_s: Seconds = 0


class Launch(Part):
    """What is started for each worker. A list of arguments; a shell only in so many words."""

    command: list[Text] | None = Field(default=None, min_length=1, max_length=1000)
    shell: Text | None = Field(default=None, min_length=1)
    image: Image | None = Field(default=None, description="What it runs in: registry/name:tag or …@sha256:…. Only where the back-end runs images.")
    per: Literal["worker", "gpu"] = Field(default="worker", description="One process a worker, or one for each of its GPUs.")
    env: dict[Variable, Text] = Field(default_factory=dict, max_length=1000)
    secrets: dict[Variable, Word] = Field(
        default_factory=dict, max_length=100, description="Variables by the name of a secret that the operator keeps."
    )
    workdir: Text | None = Field(default=None, pattern=r"^/", description="An absolute path.")
    port: int | None = Field(
        default=None, ge=1024, le=65_535, description="That its first worker listens on, as a notebook does: the console says how to reach it."
    )
    idle_end_s: int | None = Field(
        default=None,
        ge=300,
        le=86_400,
        description="Ended after so long without activity of its GPUs, in whole minutes. Missing readings never end it.",
    )
    in_place: bool = Field(
        default=False,
        description="Its processes meet again by themselves when a worker joins, leaves or is lost, as torchrun's do. It is resized in place, and "
        "its healthy workers stay.",
    )
    simulated: dict[str, Any] | None = Field(default=None, description="For the simulated back-end: how the job behaves.")

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

    size: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    values: list[dict[Variable, Text]] | None = Field(default=None, min_length=1, max_length=MOST_ELEMENTS)
    grid: dict[Variable, Annotated[list[Parameter], Field(min_length=1, max_length=MOST_ELEMENTS)]] | None = Field(
        default=None, min_length=1, max_length=20, description="A sweep: the values that each variable takes."
    )
    combine: Literal["product", "zip"] = Field(
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

    min: int = Field(ge=0, le=100_000)
    max: int | None = Field(default=None, ge=1, le=100_000, description="More than `min`: elastic. Null: as many as `min`.")


class JobChange(Part):
    """What may be changed of a job that was submitted. What is not named stays as it is; null takes a limit or a time away."""

    name: Name = "job"
    priority: int = Field(default=50, ge=-1000, le=1000)
    estimate_s: int | None = Field(default=None, ge=1, le=LONGEST_SECONDS)
    limit_s: int | None = Field(default=None, ge=1, le=LONGEST_SECONDS, description="Counted from the start of the run that goes on.")
    not_before: Moment | None = None
    deadline: Moment | None = None
    retries: int = Field(default=0, ge=0, le=1000)
    labels: dict[Word, Text] = Field(default_factory=dict, max_length=50, description="All of them as they shall be.")
    cost_centre: Annotated[str, StringConstraints(max_length=40)] = ""
    workers: dict[Word, Range] | None = Field(default=None, max_length=20, description="The range of each role that is named.")
    reason: Annotated[str, StringConstraints(max_length=280)] = Field(default="", description="Kept in the job's history and in the audit log.")


class JobDescription(Part):
    """A job as it is submitted."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: Name
    quota: Annotated[str, StringConstraints(min_length=1, max_length=500)] = Field(description="The path of a leaf of the quota tree.")
    job_class: Literal["batch", "interactive", "inference"] = Field(default="batch", alias="class")
    priority: int = Field(default=50, ge=-1000, le=1000)
    preemptible: bool | Literal["when_borrowed"] | None = Field(default=None, description="Unless stated: inference when_borrowed, others true.")
    gpus: int | None = Field(default=None, ge=0, le=64, description="Short for one role: whole GPUs of each worker.")
    workers: int | None = Field(default=None, ge=1, le=100_000, description="With gpus: how many workers.")
    gpu_types: list[Word] | None = Field(default=None, max_length=MOST_TYPES, description="For roles that name none.")
    roles: list[RoleForm] | None = Field(default=None, min_length=1, max_length=20)
    topology: Placing | None = None
    sharing: Literal["exclusive", "mig", "mps", "timeslice"] | None = None
    node_labels: dict[Word, Text] | None = Field(default=None, max_length=50)
    needs: dict[Word, float] | None = Field(default=None, max_length=50)
    tolerates_suspect: bool | None = None
    preemption_delay_s: Seconds | None = None
    grace_s: Seconds = Field(default=DEFAULT_GRACE_SECONDS, description="Between the signal and the end by force.")
    throughput: dict[Word, float] | None = Field(
        default=None, description="Relative speed by GPU type, of which the estimate is for 1; 0: can't run there."
    )
    checkpoint: Saving | None = Field(default=None, description="null in so many words: it can't be moved.")
    work_s: Seconds | None = Field(default=None, description="For the simulated back-end: how long it computes.")
    estimate_s: int | None = Field(default=None, ge=1, le=LONGEST_SECONDS)
    limit_s: int | None = Field(default=None, ge=1, le=LONGEST_SECONDS, description="Ended after so long a run.")
    not_before: Moment | None = None
    deadline: Moment | None = Field(default=None, description="Not started by then, it has failed.")
    retries: int = Field(default=0, ge=0, le=1000)
    labels: dict[Word, Text] = Field(default_factory=dict, max_length=50)
    cost_centre: Annotated[str, StringConstraints(max_length=40)] = ""
    launch: Launch = Launch()
    array: Array | None = None
    after: list[After] = Field(default_factory=list, max_length=100)
    hold: bool = False
    draft: bool = False
    template: Annotated[str, StringConstraints(max_length=600)] = Field(
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

    @property
    def spec(self) -> dict[str, Any]:
        """What the job's row keeps: the job as the scenario format has it, without what has columns of its own."""
        roles = self.roles or [RoleForm(min=self.workers or 1, gpus=self.gpus)]
        document: dict[str, Any] = {"roles": [_spelt(role, self.gpu_types) for role in roles], "grace_s": _number(self.grace_s)}
        for key in ("topology", "sharing", "node_labels", "needs", "tolerates_suspect", "preemption_delay_s", "throughput", "work_s"):
            value = getattr(self, key)
            if value is not None:
                document[key] = value.model_dump(exclude_none=True, exclude_defaults=True) if isinstance(value, Part) else value
        if "checkpoint" in self.model_fields_set:
            document["checkpoint"] = None if self.checkpoint is None else self.checkpoint.model_dump(exclude_none=True)
        if self.launch.image is not None:
            document[IN_IMAGE] = True
        return document

    @property
    def preemptible_column(self) -> str:
        chosen = self.preemptible
        if chosen is None:
            chosen = "when_borrowed" if self.job_class == "inference" else True
        return chosen if isinstance(chosen, str) else {True: "yes", False: "no"}[chosen]


def _spelt(role: RoleForm, gpu_types: list[str] | None) -> dict[str, Any]:
    document = role.model_dump(exclude_none=True, exclude_defaults=True) | {"name": role.name, "min": role.min}
    if gpu_types and not role.gpu_types:
        document["gpu_types"] = list(gpu_types)
    return document


def _number(value: float) -> float | int:
    """Whole numbers without a point, as people write them."""
    return int(value) if value == int(value) else value
