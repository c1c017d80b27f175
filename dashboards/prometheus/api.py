"""Telemetry sources over HTTP, to read."""

from datetime import datetime

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboards.prometheus.credentials import is_unencrypted
from dashboards.prometheus.models import PrometheusServer, SignIn
from dashboards.prometheus.services import servers_listed
from dashboards.prometheus.views import state_of
from gpufleet.core.times import now
from gpufleet.web import access_of

router = Router(tags=["Fleet"])


class SourceOut(Schema):
    id: str = Field(examples=["ps-1"])
    name: str
    url: str = Field(description="Where the Prometheus answers.", examples=["https://prometheus.example.com"])
    state: str = Field(
        description="`stale` after 45 seconds without readings.", json_schema_extra={"enum": ["new", "fresh", "stale", "off"]}, examples=["fresh"]
    )
    enabled: bool = Field(description="Whether it is read.", examples=[True])
    sign_in: str = Field(
        description="How gpufleet signs in there. Passwords and tokens are in no answer.",
        json_schema_extra={"enum": [*SignIn.values]},
        examples=["basic"],
    )
    username: str = Field(description="The user name of `basic`; else empty.", examples=["gpufleet"])
    tenant: str = Field(description="Whose series are asked for, where a server keeps those of several tenants; else empty.", examples=[""])
    unencrypted: bool = Field(description="Whether the password or token goes over http to another machine.", examples=[False])
    looked_at: datetime | None = Field(description="When it was asked last; null before the first time.", examples=["2026-03-02T09:41:20Z"])
    readings_at: datetime | None = Field(description="When it last had readings of known GPUs; null before.", examples=["2026-03-02T09:41:20Z"])
    fault: str = Field(description="Why the last look failed; empty where it did not.", examples=[""])
    gpus: int = Field(description="How many known GPUs the last answer had.", examples=[4000])
    duration_ms: int = Field(description="How long the last look took, in milliseconds.", examples=[900])
    oddities: dict[str, int] = Field(description="How often each oddity was met since the server was added.", examples=[{"out_of_range": 3}])


class SourcesOut(Schema):
    items: list[SourceOut]


@router.get("/telemetry/sources", response=SourcesOut, summary="Prometheus servers and their state")
def telemetry_sources(request: HttpRequest) -> SourcesOut:
    """Where telemetry comes from, how the last look went, and what was odd about the answers. For operators."""
    moment = now()
    return SourcesOut(items=[_out(row, state_of(row, moment)) for row in servers_listed(access_of(request))])


def _out(row: PrometheusServer, state: str) -> SourceOut:
    return SourceOut(
        id=row.public_id,
        name=row.name,
        url=row.url,
        state=state,
        enabled=row.enabled,
        sign_in=row.sign_in,
        username=row.username,
        tenant=row.tenant,
        unencrypted=is_unencrypted(row),
        looked_at=row.looked_at,
        readings_at=row.read_at,
        fault=row.fault,
        gpus=row.gpus,
        duration_ms=row.duration_ms,
        oddities=row.oddities,
    )
