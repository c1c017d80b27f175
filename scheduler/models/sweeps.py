"""Sweeps of the lab (SIM-4): a trace played at several arrival rates or fleet sizes, beside the console."""

from datetime import datetime

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from scheduler.models.replays import GOING_ON, LOST, LOST_AFTER, ReplayState
from scheduler.models.traces import Trace


class SweepAxis(models.TextChoices):
    LOAD = "load", "Arrival rate"
    NODES = "nodes", "Number of nodes"


class Sweep(models.Model):
    """One at a time goes on: it may take an hour of the machine that the console shares."""

    public_id = models.CharField(max_length=24, unique=True)
    trace = models.ForeignKey(Trace, null=True, on_delete=models.SET_NULL, related_name="sweeps")
    trace_title = models.CharField(max_length=80, help_text="Also of one that was removed since.")
    axis = models.CharField(max_length=5, choices=SweepAxis.choices)
    asked = models.JSONField(default=dict, help_text="values, policies, seeds, hours, minutes, exact")
    lane = models.PositiveSmallIntegerField(default=0, editable=False, help_text="What is in one lane goes on one at a time.")
    state = models.CharField(max_length=10, choices=ReplayState.choices, default=ReplayState.WAITING)
    asked_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    asked_at = MomentField(default=now)
    seen_at = MomentField(default=now, help_text="When it last went on.")
    ended_at = MomentField(null=True, blank=True)
    terms = models.JSONField(default=dict, help_text="gpu_types, and warm_up, until and step in milliseconds; once its trace was read")
    results = models.JSONField(default=list, help_text="[policy, value, seed, what came of it], of points that were played")
    played = models.PositiveIntegerField(default=0, help_text="Points so far.")
    fault = models.CharField(max_length=300, blank=True)

    class Meta:
        db_table = "sweep"
        indexes = [models.Index(fields=["-asked_at", "-id"], name="sweep_asked")]
        constraints = [models.UniqueConstraint(fields=["lane"], condition=Q(state__in=("waiting", "playing")), name="sweep_one_at_a_time")]

    def __str__(self) -> str:
        return f"{self.public_id}: {self.state}"

    @property
    def goes_on(self) -> bool:
        return self.outcome in GOING_ON

    @property
    def points(self) -> int:
        return len(self.asked["values"]) * len(self.asked["policies"]) * int(self.asked["seeds"])

    @property
    def is_cut_off(self) -> bool:
        return self.played < self.points

    @property
    def values_told(self) -> str:
        return ", ".join(f"{value:g}" for value in self.asked["values"])

    @property
    def step_s(self) -> float:
        """How far apart plans are; 0: one whenever something happens."""
        return float(self.terms.get("step", 0)) / 1000

    def is_lost(self, at: datetime) -> bool:
        return self.state in GOING_ON and at - self.seen_at > LOST_AFTER[ReplayState(self.state)]

    @property
    def outcome(self) -> str:
        """Its state; what was lost with its worker has failed, though its row is told so only when the next one is asked for."""
        return ReplayState.FAILED if self.is_lost(now()) else self.state

    @property
    def why_failed(self) -> str:
        return LOST[ReplayState(self.state)] if self.is_lost(now()) else self.fault
