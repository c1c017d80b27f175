"""Where telemetry of a fleet comes from: Prometheus servers, and how the last look at each went."""

from django.db import models

from gpufleet.core.times import MomentField, now


class SignIn(models.TextChoices):
    """How gpufleet says to a server who it is."""

    NONE = "none", "Without signing in"
    BASIC = "basic", "User name and password"
    BEARER = "bearer", "Bearer token"


class PrometheusServer(models.Model):
    """A Prometheus that scrapes DCGM exporters. Which GPUs it knows is seen in its answers, by their UUIDs."""

    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=80)
    url = models.CharField(max_length=500)
    enabled = models.BooleanField(default=True)
    for_services = models.BooleanField(default=False, help_text="Whether it is asked queries that owners of inference jobs write.")
    sign_in = models.CharField(max_length=8, choices=SignIn.choices, default=SignIn.NONE)
    username = models.CharField(max_length=200, blank=True)
    sealed = models.TextField(blank=True, help_text="The password or token, encrypted with the installation's key.")
    tenant = models.CharField(max_length=200, blank=True, help_text="Whose series are asked for, where a server keeps those of several.")
    revision = models.PositiveIntegerField(default=1)
    changed_at = MomentField(default=now)
    changed_by = models.CharField(max_length=160, blank=True)
    removed_at = MomentField(null=True, blank=True)
    looked_at = MomentField(null=True, blank=True, help_text="When it was asked last.")
    read_at = MomentField(null=True, blank=True, help_text="When it last answered with readings of known GPUs.")
    fault = models.CharField(max_length=300, blank=True, help_text="Why the last look failed; empty where it did not.")
    gpus = models.PositiveIntegerField(default=0, help_text="How many known GPUs the last answer had.")
    duration_ms = models.PositiveIntegerField(default=0)
    oddities = models.JSONField(default=dict, help_text="How often each oddity was met since the server was added.")

    class Meta:
        db_table = "prometheus_server"
        constraints = [
            models.UniqueConstraint(fields=["name"], condition=models.Q(removed_at__isnull=True), name="prometheus_server_named_once"),
        ]

    def __str__(self) -> str:
        return self.name
