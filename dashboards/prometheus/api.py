"""Telemetry sources over HTTP: as Settings → Telemetry adds, changes, tests and removes them."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from dashboards.prometheus.credentials import SECRET_LENGTH, WORD_LENGTH, is_unencrypted
from dashboards.prometheus.models import PrometheusServer, SignIn
from dashboards.prometheus.services import server_change, server_create, server_for, server_remove, server_test, servers_listed
from dashboards.prometheus.views import state_of
from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.api.lists import ReasonQuery

router = Router(tags=["Fleet"])


FOR_SERVICES = "Whether it answers queries of service levels, which the owners of inference jobs write."


class SourceOut(Schema):
    id: str = Field(examples=["ps-1"])
    name: str
    url: str = Field(description="Where the Prometheus answers.", examples=["https://prometheus.example.com"])
    state: str = Field(
        description="`stale` after 45 seconds without readings.", json_schema_extra={"enum": ["new", "fresh", "stale", "off"]}, examples=["fresh"]
    )
    enabled: bool = Field(description="Whether GPUs are read from it.", examples=[True])
    for_services: bool = Field(description=FOR_SERVICES, examples=[False])
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
    revision: int = Field(description="Counts its changes; the `ETag` for `If-Match`.")


class SourcesOut(Schema):
    items: list[SourceOut]


SIGN_IN: dict[str, Any] = {"enum": [*SignIn.values]}
KEPT = "Password or token. Stored encrypted, and in no answer. Left out or empty: the stored one stays, as long as address and way of signing in do."
UNENCRYPTED = "Send it over http:// to another machine all the same: anybody on the way can read it."
TENANT = "Sent as `X-Scope-OrgID` and `THANOS-TENANT`; empty: none."


class SourceIn(Taken):
    """A Prometheus server."""

    name: str = Field(max_length=80)
    url: str = Field(max_length=500, description="Where it answers; a path in front of /api is allowed.")
    enabled: bool = Field(True, description="Whether GPUs are read from it.")
    for_services: bool = Field(False, description=FOR_SERVICES)
    sign_in: str = Field(SignIn.NONE, max_length=8, description="How gpufleet signs in there.", json_schema_extra=SIGN_IN)
    username: str = Field("", max_length=WORD_LENGTH, description="The user name of `basic`.")
    secret: str = Field("", max_length=SECRET_LENGTH, description=KEPT)
    unencrypted: bool = Field(False, description=UNENCRYPTED)
    tenant: str = Field("", max_length=WORD_LENGTH, description=TENANT)
    reason: str = Field("", max_length=300)


class SourceChange(Taken):
    """What is not named stays."""

    name: str | None = Field(None, max_length=80)
    url: str | None = Field(None, max_length=500, description="Where it answers.")
    enabled: bool | None = Field(None, description="Whether GPUs are read from it.")
    for_services: bool | None = Field(None, description=FOR_SERVICES)
    sign_in: str | None = Field(None, max_length=8, description="How gpufleet signs in there.", json_schema_extra=SIGN_IN)
    username: str | None = Field(None, max_length=WORD_LENGTH, description="The user name of `basic`.")
    secret: str | None = Field(None, max_length=SECRET_LENGTH, description=KEPT)
    unencrypted: bool | None = Field(None, description=UNENCRYPTED)
    tenant: str | None = Field(None, max_length=WORD_LENGTH, description=TENANT)
    reason: str = Field("", max_length=300)


class SourceTestOut(Schema):
    """What one look at it found. Nothing of it is kept."""

    gpus: int = Field(description="Known GPUs with readings.", examples=[4000])
    duration_ms: int = Field(description="How long it took, in milliseconds.", examples=[900])
    fault: str = Field(description="Why it failed; empty where it did not.", examples=[""])


@router.get("/telemetry/sources", response=SourcesOut, summary="Prometheus servers and their state")
def telemetry_sources(request: HttpRequest) -> SourcesOut:
    """Where telemetry comes from, how the last look went, and what was odd about the answers. For operators."""
    moment = now()
    return SourcesOut(items=[_out(row, state_of(row, moment)) for row in servers_listed(access_of(request))])


@router.post("/telemetry/sources", response={201: SourceOut}, url_name="telemetry_sources", summary="Add a Prometheus server")
def telemetry_source_create(request: HttpRequest, body: SourceIn, response: HttpResponse) -> Status[SourceOut]:
    """It is read within 15 seconds. `/test` looks at it once."""
    made = server_create(access=access_of(request), values=body.dict(exclude={"reason"}), reason=body.reason, now=now())
    return Status(201, _told(made, response))


@router.get("/telemetry/sources/{public_id}", response=SourceOut, url_name="telemetry_source", summary="A Prometheus server and its state")
def telemetry_source_get(request: HttpRequest, public_id: str, response: HttpResponse) -> SourceOut:
    return _told(server_for(access_of(request), public_id), response)


@router.patch(
    "/telemetry/sources/{public_id}", response=SourceOut, url_name="telemetry_source", openapi_extra=IF_MATCH, summary="Change a Prometheus server"
)
def telemetry_source_change(request: HttpRequest, public_id: str, body: SourceChange, response: HttpResponse) -> SourceOut:
    """With `If-Match` only if nothing has changed."""
    access = access_of(request)
    server, values = server_for(access, public_id), body.dict(exclude={"reason"}, exclude_none=True)
    changed = server_change(access=access, server=server, values=values, revision=revision_wanted(request), reason=body.reason, now=now())
    return _told(changed, response)


@router.delete("/telemetry/sources/{public_id}", response={204: None}, url_name="telemetry_source", summary="Remove a Prometheus server")
def telemetry_source_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    """It is not read any more. Nothing is done to GPUs that it alone knows."""
    access = access_of(request)
    server_remove(access=access, server=server_for(access, public_id), reason=query.reason, now=now())
    return Status(204, None)


@router.post(
    "/telemetry/sources/{public_id}/test", response=SourceTestOut, url_name="telemetry_source_test", summary="Look at a Prometheus server once"
)
def telemetry_source_test(request: HttpRequest, public_id: str) -> SourceTestOut:
    """200 also where it fails: `fault` says why."""
    access = access_of(request)
    answer = server_test(access=access, server=server_for(access, public_id), now=now())
    return SourceTestOut(gpus=len(answer.look.gpus), duration_ms=answer.duration_ms, fault=answer.fault)


def _told(row: PrometheusServer, response: HttpResponse) -> SourceOut:
    stamped(response, row.revision)
    return _out(row, state_of(row, now()))


def _out(row: PrometheusServer, state: str) -> SourceOut:
    return SourceOut(
        id=row.public_id,
        name=row.name,
        url=row.url,
        state=state,
        enabled=row.enabled,
        for_services=row.for_services,
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
        revision=row.revision,
    )
