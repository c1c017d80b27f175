"""One's own notices over HTTP: the list, the choices, the log, and which jobs one follows."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from quotas.permissions import Access
from scheduler.api.lists import answered, listed, parameters_of
from scheduler.models import Notice, Sending
from scheduler.notify.lists import NOTICES, SENDINGS
from scheduler.selectors.jobs import job_for
from scheduler.selectors.notices import choices_row, must_be_signed_in, must_be_whole, must_write_own, notices_of, sendings_of
from scheduler.services.notify.notices import (
    QUIET_RULES,
    Choices,
    Kind,
    Way,
    choices_of,
    job_follow,
    notice_test,
    notices_choose,
    notices_read,
    own_hook,
)
from scheduler.services.notify.webhooks import own_hook_remove, own_hook_save

router = Router(tags=["Notices"])


class NoticeOut(Schema):
    """`count` is how many happenings it stands for; `job` is null where they are several."""

    id: int
    kind: str
    at: datetime
    title: str
    text: str
    job: str | None
    link: str | None = Field(description="The page of what it is about, other than a job.", examples=["/quotas/changes/qc-7/"])
    count: int
    read_at: datetime | None


class NoticesOut(Schema):
    items: list[NoticeOut]
    next: str | None
    previous: str | None


class ReadIn(Taken):
    ids: list[int] | None = Field(None, max_length=1000, description="Null: all.")


class ReadOut(Schema):
    read: int


class ChoicesOut(Schema):
    """`ways` says by kind how one is told: console, email, webhook. Quiet hours are minutes after midnight in the zone; null: none."""

    ways: dict[str, list[str]]
    zone: str
    quiet_from: int | None
    quiet_until: int | None
    quiet_rule: str
    urgent: list[str]
    revision: int
    webhook: str | None = Field(description="The address of one's own webhook.")
    webhook_revision: int = Field(description="As an `ETag` in `If-Match` of a change of that webhook; 0 where there is none.")


# What the service refuses is told here and judged there, so that no rule is written twice.
KINDS: dict[str, Any] = {"items": {"type": "string", "enum": list(Kind)}}
RULES: dict[str, Any] = {"enum": list(QUIET_RULES)}
WAYS: dict[str, Any] = {
    "propertyNames": {"enum": list(Kind)},
    "additionalProperties": {"type": "array", "items": {"type": "string", "enum": list(Way)}},
}


class ChoicesIn(Schema):
    ways: dict[str, list[str]] = Field(
        description=f"Kinds: {', '.join(Kind)}. Kinds that are not named are not sent.",
        json_schema_extra=WAYS,
    )
    zone: str = Field("UTC", max_length=100)
    quiet_from: int | None = Field(None, ge=0, lt=1440)
    quiet_until: int | None = Field(None, ge=0, lt=1440)
    quiet_rule: str = Field(
        "hold", description="hold: e-mail and webhook wait until quiet hours are over. drop: they are left out.", json_schema_extra=RULES
    )
    urgent: list[str] = Field(default_factory=list, max_length=20, description="Kinds that quiet hours do not keep back.", json_schema_extra=KINDS)
    seen: int | None = Field(None, ge=0, le=2_147_483_647, description="The revision that was read: newer choices are not overwritten.")


class OwnHookIn(Schema):
    url: str = Field(max_length=2000)


class OwnHookOut(Schema):
    url: str
    fingerprint: str
    secret: str | None = Field(description="Told once, when there was no webhook before.")


class TestOut(Schema):
    ways: list[str]


class SendingOut(Schema):
    """`state`: waiting, delivered, parked (given up) or dropped (quiet hours)."""

    id: int
    notice: int
    title: str
    way: str
    state: str
    attempts: int
    made_at: datetime
    due_at: datetime | None
    done_at: datetime | None
    fault: str


class SendingsOut(Schema):
    items: list[SendingOut]
    next: str | None
    previous: str | None


class FollowOut(Schema):
    job: str
    follows: bool


@router.get("/me/notices", response=NoticesOut, url_name="notices", openapi_extra=parameters_of(NOTICES), summary="List my notifications")
def notices(request: HttpRequest) -> HttpResponse:
    return listed(request, NOTICES, notices_of(_person(request)), _notice)


@router.post("/me/notices/read", response=ReadOut, url_name="notices_read", summary="Mark my notices as read")
def notices_mark(request: HttpRequest, body: ReadIn) -> HttpResponse:
    access = _own_writer(request)
    keys = [key for key in body.ids if 0 < key < 2**63] if body.ids is not None else None
    return answered({"read": notices_read(access=access, keys=keys, now=now())})


@router.get("/me/notices/choices", response=ChoicesOut, url_name="notice_choices", summary="My notification settings")
def notice_choices(request: HttpRequest) -> HttpResponse:
    access = _person(request)
    chosen = choices_of(choices_row(access))
    return stamped(answered(_choices(access, chosen)), chosen.revision)


@router.put("/me/notices/choices", response=ChoicesOut, url_name="notice_choices", openapi_extra=IF_MATCH, summary="Change my notification settings")
def notice_choices_put(request: HttpRequest, body: ChoicesIn) -> HttpResponse:
    """All choices at once. 409 if they were changed since `seen`; with `If-Match` only if nothing has changed (412 otherwise)."""
    access = _own_writer(request)
    chosen = notices_choose(access=access, revision=revision_wanted(request), **body.dict())
    return stamped(answered(_choices(access, chosen)), chosen.revision)


@router.put("/me/notices/webhook", response=OwnHookOut, url_name="own_webhook", openapi_extra=IF_MATCH, summary="Where my own notices are sent")
def own_webhook_put(request: HttpRequest, body: OwnHookIn) -> HttpResponse:
    """With the `webhook_revision` of one's choices as `If-Match` only if nothing has changed."""
    access = _signed_in(request)
    new = own_hook_save(access=access, url=body.url, seen=revision_wanted(request), now=now())
    assert access.actor.user is not None
    hook = own_hook(access.actor.user)
    assert hook is not None
    told = {"url": hook.url, "fingerprint": hook.fingerprint, "secret": new.secret if new else None}
    answer = stamped(answered(told), hook.revision)
    answer["Cache-Control"] = "no-store"
    return answer


@router.delete("/me/notices/webhook", response={204: None}, url_name="own_webhook", openapi_extra=IF_MATCH, summary="Send my own notices nowhere")
def own_webhook_delete(request: HttpRequest) -> Status[None]:
    """With `If-Match` only if nothing has changed."""
    own_hook_remove(access=_signed_in(request), seen=revision_wanted(request), now=now())
    return Status(204, None)


@router.post("/me/notices/test", response=TestOut, url_name="notices_test", summary="Send me a test by every way that I use")
def notices_try(request: HttpRequest) -> HttpResponse:
    """409 while the last one is on its way or not read yet."""
    return answered({"ways": sorted(notice_test(access=_own_writer(request), now=now()))})


@router.get("/me/notices/log", response=SendingsOut, url_name="notices_log", openapi_extra=parameters_of(SENDINGS), summary="How they were sent")
def notices_log(request: HttpRequest) -> HttpResponse:
    return listed(request, SENDINGS, sendings_of(_person(request)), _sending)


@router.put("/jobs/{public_id}/follow", response=FollowOut, url_name="job_follow", summary="Follow a job")
def job_followed(request: HttpRequest, public_id: str) -> HttpResponse:
    return _follow(request, public_id, follows=True)


@router.delete("/jobs/{public_id}/follow", response=FollowOut, url_name="job_follow", summary="Unfollow a job")
def job_unfollowed(request: HttpRequest, public_id: str) -> HttpResponse:
    return _follow(request, public_id, follows=False)


def _follow(request: HttpRequest, public_id: str, *, follows: bool) -> HttpResponse:
    access = _writer(request)
    access.must_somewhere(Can.SEE)
    job_follow(access=access, job=job_for(access, public_id), follows=follows, now=now())
    return answered({"job": public_id, "follows": follows})


def _own_writer(request: HttpRequest) -> Access:
    must_write_own(access_of(request))
    return _person(request)


def _person(request: HttpRequest) -> Access:
    access = access_of(request)
    must_be_whole(access)
    return access


def _signed_in(request: HttpRequest) -> Access:
    access = access_of(request)
    must_be_signed_in(access)
    return access


def _writer(request: HttpRequest) -> Access:
    access = access_of(request)
    must_write_own(access)
    return access


def _notice(one: Notice) -> dict[str, Any]:
    plain = {name: getattr(one, name) for name in ("kind", "at", "title", "text", "count", "read_at")}
    return {"id": one.pk, "job": one.job or None, "link": one.link or None} | plain


def _sending(one: Sending) -> dict[str, Any]:
    plain = {name: getattr(one, name) for name in ("way", "state", "attempts", "made_at", "done_at", "fault")}
    due = one.due_at if one.done_at is None and one.delivery_id is None else None
    return {"id": one.pk, "notice": one.notice_id, "title": one.notice.title, "due_at": due} | plain


def _choices(access: Access, chosen: Choices) -> dict[str, Any]:
    hook = own_hook(access.actor.user) if access.actor.user is not None else None
    return {
        "ways": {kind: sorted(ways) for kind, ways in chosen.ways.items()},
        "zone": chosen.zone,
        "quiet_from": chosen.quiet.begins if chosen.quiet else None,
        "quiet_until": chosen.quiet.ends if chosen.quiet else None,
        "quiet_rule": "drop" if chosen.drops else "hold",
        "urgent": sorted(chosen.urgent),
        "revision": chosen.revision,
        "webhook": hook.url if hook else None,
        "webhook_revision": hook.revision if hook else 0,
    }
