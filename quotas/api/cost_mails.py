"""Costs by e-mail over HTTP: set up, removed, sent again, with the delivery log."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.chargeback.report import month_read
from quotas.models import CostMail
from quotas.services.cost_mails import cost_mail_again, cost_mail_create, cost_mail_for, cost_mail_remove, cost_mails_listed

router = Router(tags=["Costs"])
MOST = 100


class MailingOut(Schema):
    month: str
    person: str
    state: str
    attempts: int
    due_at: datetime
    done_at: datetime | None
    fault: str


class CostMailOut(Schema):
    id: str
    team: str
    people: list[str]
    day: int
    author: str
    log: list[MailingOut]


class CostMailsOut(Schema):
    items: list[CostMailOut]


class CostMailIn(Taken):
    team: str = Field(max_length=500)
    people: list[str] = Field(min_length=1, max_length=50)
    day: int = Field(3, ge=1, le=28)


class CostMailSendIn(Taken):
    month: str = Field(max_length=7)


class CostMailSentOut(Schema):
    people: int


@router.get("/cost-mails", response=CostMailsOut, url_name="cost_mails", summary="Cost e-mails")
def cost_mails(request: HttpRequest) -> dict[str, Any]:
    """With what became of the newest hundred of each."""
    return {"items": [_told(mail) for mail in cost_mails_listed(access_of(request))]}


@router.post("/cost-mails", response={201: CostMailOut}, url_name="cost_mails", summary="Send costs by e-mail")
def cost_mail_make(request: HttpRequest, body: CostMailIn) -> Status[dict[str, Any]]:
    """Each month, for the month before. The people need a role that shows the costs of the subtree."""
    return Status(201, _told(cost_mail_create(access=access_of(request), path=body.team, usernames=body.people, day=body.day, now=now())))


@router.post("/cost-mails/{public_id}/send", response=CostMailSentOut, url_name="cost_mail_send", summary="Send a month again")
def cost_mail_send(request: HttpRequest, public_id: str, body: CostMailSendIn) -> dict[str, int]:
    """To everybody for whom it is not on its way already."""
    access = access_of(request)
    return {"people": cost_mail_again(access=access, mail=cost_mail_for(access, public_id), first=month_read(body.month), now=now())}


@router.delete("/cost-mails/{public_id}", response={204: None}, url_name="cost_mail", summary="Stop a cost e-mail")
def cost_mail_delete(request: HttpRequest, public_id: str) -> Status[None]:
    access = access_of(request)
    cost_mail_remove(access=access, mail=cost_mail_for(access, public_id), now=now())
    return Status(204, None)


def _told(mail: CostMail) -> dict[str, Any]:
    log = [
        {"month": f"{one.first:%Y-%m}", "person": one.user.username}
        | {name: getattr(one, name) for name in ("state", "attempts", "due_at", "done_at", "fault")}
        for one in mail.mailings.select_related("user").order_by("-pk")[:MOST]
    ]
    people = sorted(user.username for user in mail.people.all())
    return {"id": mail.public_id, "team": mail.node.path, "people": people, "day": mail.day, "author": mail.author_name, "log": log}
