"""What people of the demo's company run: each kind of work with who runs it, how large, how long, and how it uses its GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gpufleet.core.models import User
from gpufleet.demo.fleet import A100, H100, L40S, SLICED_BOARD
from gpufleet.demo.organisation import GUIDES, MEMBERS
from quotas.models import QuotaNode, Role
from scheduler.models import JobClass
from scheduler.simulation.progress import Rhythm

GANG_NODE = 8
GRACE_SECONDS, SAVE_SECONDS = 60, 20
WEIGHTS = {profile.name: SLICED_BOARD.charge_milli(profile) for profile in SLICED_BOARD.profiles}


@dataclass(frozen=True, slots=True)
class Workload:
    """`wanted` is what people ask for, in percent of a type's capacity. It swings with the day: services and people are at work by day, and long work
    (less than 0) is left to the night, so that there is a queue at any hour. `minutes` are a floor and a mean beyond it."""

    key: str
    rhythm: Rhythm
    job_class: str
    priorities: tuple[int, ...]
    preemptible: str
    wanted: Mapping[str, int]
    shapes: tuple[tuple[int, int], ...]  # (GPUs or slices, weight)
    minutes: tuple[float, float]
    arrival_seconds: float
    teams: tuple[tuple[str, int], ...]
    names: tuple[str, ...]
    busy: tuple[float, float]  # range of SM activity at its best
    memory: tuple[float, float]
    fails: float = 0.05
    swing: float = 0.0
    checkpoint_minutes: int | None = None
    slices: bool = False
    quick: bool = False  # so many of them that a large fleet gets longer ones instead of more

    @property
    def can_wait(self) -> bool:
        """Whether people put it into the queue though their team holds all that it may: it starts when something else has ended."""
        return self.job_class == JobClass.BATCH

    @property
    def scales_in(self) -> bool:
        """Whether some of it ends when the hour asks for less. What is left to the night goes on to its end."""
        return self.swing > 0


@dataclass(frozen=True, slots=True)
class Sliced:
    """A service on slices names the profile that it needs."""

    profile: str
    weight: int


_BATCH, _SERVE, _PERSON = JobClass.BATCH.value, JobClass.INFERENCE.value, JobClass.INTERACTIVE.value
_R, _P, _F = "veridia/research/", "veridia/products/", "veridia/platform/"

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "pretraining",
        Rhythm.STEADY,
        _BATCH,
        (60, 70),
        "yes",
        {H100: 46},
        ((32, 4), (64, 4), (16, 2), (128, 1)),
        (60, 700),
        150,
        ((_R + "language/atlas", 5), (_R + "vision/iris", 2), (_R + "vision/video", 1), (_P + "assistant/chat", 2)),
        ("atlas-13b-pretrain-{n}", "atlas-34b-stage-{n}", "iris-vit-g-pretrain-{n}", "moe-8x7b-run-{n}", "long-context-{n}"),
        (0.62, 0.84),
        (0.78, 0.94),
        swing=-0.2,
        checkpoint_minutes=12,
    ),
    Workload(
        "fine-tuning",
        Rhythm.STARVED,
        _BATCH,
        (40, 50, 50, 60),
        "yes",
        {H100: 30, A100: 48},
        ((8, 5), (4, 4), (16, 3), (24, 1)),
        (12, 110),
        60,
        (
            (_R + "language/instruct", 4),
            (_P + "assistant/chat", 2),
            (_P + "assistant/tools", 2),
            (_P + "search", 2),
            (_P + "recommend", 3),
            (_P + "safety", 2),
            (_R + "speech", 3),
            (_R + "control", 1),
            (_R + "vision/iris", 2),
        ),
        ("sft-{n}", "dpo-round-{n}", "lora-tools-{n}", "ranker-distil-{n}", "whisper-adapt-{n}", "reward-model-{n}", "two-tower-{n}"),
        (0.22, 0.48),
        (0.55, 0.90),
        swing=-0.2,
        checkpoint_minutes=20,
    ),
    Workload(
        "sweep",
        Rhythm.TRIAL,
        _BATCH,
        (20, 30, 40),
        "yes",
        {H100: 11, A100: 16, L40S: 10},
        ((1, 6), (2, 3), (4, 1)),
        (2, 15),
        20,
        ((_R + "vision/iris", 2), (_R + "speech", 2), (_R + "control", 3), (_P + "recommend", 2), (_R + "language/instruct", 1)),
        ("sweep-lr-{n}", "ablation-{n}", "trial-{n}", "seed-study-{n}"),
        (0.25, 0.60),
        (0.20, 0.60),
        fails=0.09,
        quick=True,
    ),
    Workload(
        "evaluation",
        Rhythm.TRIAL,
        _BATCH,
        (50, 60),
        "yes",
        {H100: 6, A100: 6, L40S: 7},
        ((1, 7), (2, 3)),
        (1, 4),
        10,
        ((_F + "evaluation", 6), (_F + "systems", 2), (_R + "language/instruct", 1)),
        ("eval-suite-{n}", "regression-{n}", "red-team-{n}", "nightly-bench-{n}", "driver-check-{n}"),
        (0.30, 0.70),
        (0.30, 0.70),
        fails=0.07,
        quick=True,
    ),
    Workload(
        "serving",
        Rhythm.SERVING,
        _SERVE,
        (70, 80),
        "when_borrowed",
        {H100: 17, A100: 14, L40S: 40},
        ((2, 4), (4, 4), (8, 2)),
        (30, 2400),
        25,
        ((_P + "assistant/chat", 5), (_P + "assistant/tools", 2), (_P + "search", 4), (_P + "recommend", 3), (_P + "safety", 2)),
        ("chat-api-{n}", "tools-api-{n}", "search-rank-{n}", "feed-rank-{n}", "moderation-{n}", "query-rewrite-{n}"),
        (0.34, 0.66),
        (0.70, 0.92),
        fails=0.01,
        swing=0.45,
    ),
    Workload(
        "slices",
        Rhythm.SERVING,
        _SERVE,
        (60, 70),
        "when_borrowed",
        {A100: 78},
        ((1, 4), (2, 4), (4, 2), (6, 1)),
        (30, 900),
        25,
        ((_F + "data/embeddings", 3), (_P + "safety", 3), (_P + "search", 2), (_P + "assistant/tools", 2)),
        ("embed-replicas-{n}", "toxicity-{n}", "spell-{n}", "intent-{n}", "rerank-mini-{n}"),
        (0.30, 0.72),
        (0.45, 0.85),
        fails=0.01,
        swing=0.3,
        slices=True,
    ),
    Workload(
        "notebook",
        Rhythm.BURSTS,
        _PERSON,
        (50,),
        "yes",
        {H100: 4, A100: 9, L40S: 9},
        ((1, 8), (2, 2)),
        (6, 80),
        40,
        (
            (_R + "language/atlas", 2),
            (_R + "vision/iris", 2),
            (_R + "vision/video", 1),
            (_R + "speech", 2),
            (_R + "control", 2),
            (_P + "search", 1),
            (_P + "safety", 1),
            (_F + "data/curation", 2),
            (_F + "evaluation", 1),
            (_F + "simulation", 1),
        ),
        ("notebook-{n}", "explore-{n}", "debug-shell-{n}"),
        (0.25, 0.75),
        (0.10, 0.60),
        fails=0.02,
        swing=0.35,
    ),
    Workload(
        "reserved-dev",
        Rhythm.IDLE,
        _PERSON,
        (50,),
        "no",
        {H100: 11, A100: 13, L40S: 5},
        ((8, 4), (4, 3), (2, 2), (16, 1)),
        (150, 1100),
        240,
        (
            (_R + "vision/video", 3),
            (_R + "control", 2),
            (_P + "recommend", 2),
            (_P + "assistant/tools", 2),
            (_F + "systems", 1),
            (_F + "simulation", 1),
        ),
        ("dev-box-{n}", "keep-warm-{n}", "interactive-alloc-{n}", "demo-standby-{n}"),
        (0.004, 0.03),
        (0.01, 0.72),
        fails=0.0,
    ),
    Workload(
        "simulation",
        Rhythm.WAVES,
        _BATCH,
        (40,),
        "yes",
        {L40S: 30, A100: 8},
        ((4, 3), (8, 2), (2, 3)),
        (10, 45),
        45,
        ((_F + "simulation", 6), (_R + "control", 2)),
        ("warehouse-sim-{n}", "drive-render-{n}", "arm-policy-{n}"),
        (0.40, 0.72),
        (0.40, 0.80),
        swing=-0.25,
        checkpoint_minutes=15,
    ),
    Workload(
        "embedding",
        Rhythm.STARVED,
        _BATCH,
        (30,),
        "yes",
        {A100: 8, L40S: 6},
        ((2, 3), (4, 4), (8, 1)),
        (8, 55),
        50,
        ((_F + "data/curation", 4), (_F + "data/embeddings", 3)),
        ("dedup-shard-{n}", "embed-corpus-{n}", "quality-filter-{n}"),
        (0.30, 0.55),
        (0.35, 0.70),
        checkpoint_minutes=10,
    ),
)

# What a team calls its own; other teams use the kind's names.
NAMES: dict[tuple[str, str], tuple[str, ...]] = {
    ("pretraining", _R + "language/atlas"): ("atlas-13b-pretrain-{n}", "atlas-34b-stage-{n}", "atlas-long-context-{n}"),
    ("pretraining", _R + "vision/iris"): ("iris-vit-g-pretrain-{n}", "iris-clip-{n}"),
    ("pretraining", _R + "vision/video"): ("video-tokenizer-{n}", "world-model-{n}"),
    ("pretraining", _P + "assistant/chat"): ("chat-moe-{n}", "chat-continued-{n}"),
    ("fine-tuning", _R + "language/instruct"): ("sft-atlas-{n}", "dpo-round-{n}", "reward-model-{n}"),
    ("fine-tuning", _P + "assistant/chat"): ("chat-sft-{n}", "persona-dpo-{n}"),
    ("fine-tuning", _P + "assistant/tools"): ("lora-tools-{n}", "function-calls-{n}"),
    ("fine-tuning", _P + "search"): ("ranker-distil-{n}", "query-encoder-{n}"),
    ("fine-tuning", _P + "recommend"): ("two-tower-{n}", "session-rank-{n}"),
    ("fine-tuning", _P + "safety"): ("toxicity-ft-{n}", "policy-classifier-{n}"),
    ("fine-tuning", _R + "speech"): ("whisper-adapt-{n}", "tts-voice-{n}"),
    ("fine-tuning", _R + "vision/iris"): ("iris-detect-{n}", "iris-segment-{n}"),
    ("fine-tuning", _R + "control"): ("policy-distil-{n}", "grasp-ft-{n}"),
    ("serving", _P + "assistant/chat"): ("chat-api-{n}", "chat-long-{n}"),
    ("serving", _P + "assistant/tools"): ("tools-api-{n}", "code-exec-{n}"),
    ("serving", _P + "search"): ("search-rank-{n}", "query-rewrite-{n}"),
    ("serving", _P + "recommend"): ("feed-rank-{n}", "candidates-{n}"),
    ("serving", _P + "safety"): ("moderation-{n}", "image-screen-{n}"),
    ("slices", _F + "data/embeddings"): ("embed-replicas-{n}",),
    ("slices", _P + "safety"): ("toxicity-{n}", "spam-{n}"),
    ("slices", _P + "search"): ("spell-{n}", "rerank-mini-{n}"),
    ("slices", _P + "assistant/tools"): ("intent-{n}",),
    ("simulation", _R + "control"): ("arm-policy-{n}", "walker-{n}"),
}

# What somebody submits who is not part of the play.
GUEST = Workload("other", Rhythm.STARVED, _BATCH, (50,), "yes", {}, ((1, 1),), (3, 20), 1, (), ("job-{n}",), (0.30, 0.60), (0.30, 0.70))

BY_KEY: dict[str, Workload] = {workload.key: workload for workload in (*WORKLOADS, GUEST)}

SLICE_PROFILES = (Sliced("1g.10gb", 6), Sliced("2g.20gb", 2), Sliced("3g.40gb", 3), Sliced("4g.40gb", 1))

FAILURES = (
    "Worker 0 ended with exit code 1.",
    "CUDA out of memory on rank 3.",
    "NCCL watchdog: all-reduce timed out after 600 s.",
    "Loss is not a number at step 4,100.",
    "Data loader could not open shard 0182.",
)


def names_of(workload: Workload, quota: str) -> tuple[str, ...]:
    return NAMES.get((workload.key, quota), workload.names)


# What people say that their jobs start. Simulated hardware runs none of it; it is what their pages show.
MOST_REPLICAS = 4  # of a service
READY_SECONDS = 20  # a replica loads its weights for so long after its start
_TRAIN, _SERVING, _TOOLS = "veridia/train:2026.10", "veridia/serve:2026.11", "veridia/tools:2026.11"
PROGRAMS: dict[str, tuple[str, str]] = {
    "pretraining": (_TRAIN, "python -m dist.pretrain --config=configs/pretrain.yaml --resume"),
    "fine-tuning": (_TRAIN, "python -m dist.finetune --config=configs/finetune.yaml --resume"),
    "sweep": (_TRAIN, "python train.py --config=configs/trial.yaml"),
    "evaluation": (_TOOLS, "python evaluate.py --suite=nightly"),
    "serving": (_SERVING, "python -m serve --port=8000"),
    "slices": (_SERVING, "python -m serve --port=8000 --small"),
    "notebook": (_TOOLS, "jupyter lab --no-browser --ip=0.0.0.0"),
    "reserved-dev": (_TOOLS, "sleep infinity"),
    "simulation": (_TOOLS, "python simulate.py --scenes=scenes/"),
    "embedding": (_TOOLS, "python embed.py --in=shards/ --out=vectors/"),
    "other": (_TOOLS, "python run.py"),
}
assert PROGRAMS.keys() == {kind.key for kind in (*WORKLOADS, GUEST)}, "each kind of work starts something"


@lru_cache(4096)
def team_of(path: str) -> str:
    """The team that a leaf belongs to: organisation/department/team."""
    return "/".join(path.split("/")[:3])


def submitters() -> dict[str, tuple[str, ...]]:
    """Team path -> user names of those who submit for it."""
    found = {path: tuple(username for username, _ in team) for path, team in MEMBERS.items()}
    for guide in GUIDES:
        if guide.role in (Role.SUBMITTER, Role.TEAM_LEAD):
            found[guide.path] = (*found[guide.path], guide.username)
    return found


@dataclass(frozen=True, slots=True)
class Want:
    """A job that somebody is about to submit."""

    workload: Workload
    name: str
    quota: str
    username: str
    priority: int
    gpu_type: str
    gpus: int
    profile: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def milli(self) -> int:
        return self.gpus * (WEIGHTS[self.profile] if self.profile else 1000)

    def spec(self, work_seconds: int) -> dict[str, object]:
        """The job as a scenario states it: its gang, where it may run, how it saves its work."""
        role: dict[str, object] = {"name": "worker", "gpu_types": [self.gpu_type]}
        if self.profile:
            role |= {"min": self.gpus, "mig": self.profile}
        else:
            role |= {"min": -(-self.gpus // GANG_NODE), "gpus": min(self.gpus, GANG_NODE)}
        if self.workload.key == "serving":
            # One replica runs, and whoever looks may ask for more.
            role |= {"max": MOST_REPLICAS, "desired": 1}
        spec: dict[str, object] = {"roles": [role], "work_s": work_seconds, "grace_s": GRACE_SECONDS}
        if self.gpus > GANG_NODE and not self.profile:
            spec["topology"] = {"preferred": "leaf"}
        if self.workload.checkpoint_minutes:
            spec["checkpoint"] = {"interval_s": self.workload.checkpoint_minutes * 60, "save_s": SAVE_SECONDS, "restore_s": 40}
        return spec

    @property
    def launch(self) -> dict[str, object]:
        """What the simulated back-end needs to know to play it: images first, then one rendezvous over the gang."""
        kind = self.workload
        play = {
            "load_s": 5 + round(0.18 * min(self.gpus, 128), 1),
            "fails": kind.fails,
            "fails_with": list(FAILURES),
            "rhythm": kind.rhythm.value,
            "busy": list(kind.busy),
            "memory": list(kind.memory),
        }
        image, command = PROGRAMS[kind.key]
        how: dict[str, object] = {"per": "gpu"} if command.startswith("python -m dist") else {}
        if kind.key == "serving":
            how["ready"] = {"http": {"port": 8000, "path": "/health"}}
            play["ready_s"] = READY_SECONDS
        return {"image": image, "command": [*command.split(), f"--name={self.name}"], "workdir": "/workspace", **how, "simulated": play}


def job_fields(want: Want, *, quota: QuotaNode, owner: User | None, work: int, templates: Mapping[str, str]) -> dict[str, Any]:
    """What a submission says about a job, as the table has it. `templates`: the key of the template that each kind of work begins with."""
    template = templates.get(want.workload.key)
    return {
        "name": want.name,
        "quota": quota,
        "owner": owner,
        "job_class": want.workload.job_class,
        "priority": want.priority,
        "preemptible": want.workload.preemptible,
        "spec": want.spec(work),
        "launch": want.launch,
        "labels": dict(want.labels),
        "cost_centre": quota.cost_centre,
        "estimate_seconds": int(sum(want.workload.minutes) * 60) if want.workload.job_class == JobClass.BATCH else None,
        "template": template,
        "template_version": 1 if template else None,
    }
