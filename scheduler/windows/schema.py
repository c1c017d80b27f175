"""A reservation as it is asked for, the same for form, API and command line."""

from datetime import datetime

from pydantic import Field

from gpufleet.core.taken import Taken


class ReservationIn(Taken):
    """GPUs of a type for a subtree (`quota`) or for all jobs of a class (`job_class`), once, again and again (`rule`), or standing (no `ends_at`).

    `gpus` anywhere, `nodes` whole ones, or `gpus` inside one block of the topology (`level`). A rule repeats by the wall clock of `zone`.
    """

    name: str = Field(max_length=200)
    quota: str | None = Field(None, max_length=600)
    job_class: str | None = Field(None, max_length=20)
    gpu_type: str = Field(max_length=100)
    gpus: int | None = None
    nodes: int | None = None
    level: str | None = Field(None, max_length=100)
    starts_at: datetime
    ends_at: datetime | None = None
    rule: str = Field("", max_length=400)
    zone: str = Field("UTC", max_length=100)
    notice_s: int = 600
    lead_s: int = 900
    decay_s: int | None = None
    idle: str = Field("held", max_length=20)
    purpose: str = Field("", max_length=400)
