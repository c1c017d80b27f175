"""Where ranks report their checkpoints, with the token of their attempt and no other."""

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.errors import AuthenticationError

from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from scheduler.models import Attempt
from scheduler.services.jobs.checkpoints import Shard, attempt_of_token, shard_report

router = Router(tags=["Checkpoints"])
BIGGEST = 2**63 - 1


class ShardIn(Taken):
    """One rank's part of a checkpoint, once it is safely written."""

    step: int = Field(ge=0, le=BIGGEST)
    shard: int = Field(ge=0)
    shards: int = Field(ge=1, description="How many shards this step has in all.")
    location: str = Field(max_length=500, description="Where the checkpoint is. The next attempt receives it.")
    bytes: int = Field(0, ge=0, le=BIGGEST)
    digest: str = Field("", max_length=128)


class ShardsOut(Schema):
    """How much of the step has been reported. `complete`: all of it, so that a run may begin from it."""

    step: int
    present: int
    shards: int
    complete: bool


@router.post("/checkpoints", auth=None, response=ShardsOut, url_name="checkpoint-report", summary="Report a shard of a checkpoint")
def checkpoint_report(request: HttpRequest, body: ShardIn) -> ShardsOut:
    """Called by the ranks of a running attempt, with the token that they were given as GPUFLEET_TOKEN. A report that is sent again counts once."""
    attempt = attempt_asking(request)
    shard = Shard(body.shard, body.bytes, body.digest)
    row = shard_report(attempt=attempt, step=body.step, shard=shard, shards_expected=body.shards, location=body.location, now=now())
    return ShardsOut(step=row.step, present=row.shards.count(), shards=row.shards_expected, complete=row.verified_at is not None)


def attempt_asking(request: HttpRequest) -> Attempt:
    """The running attempt whose token the request carries."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        if request.user.is_authenticated:
            raise PermissionDenied("Only the ranks of a running attempt report for it, with its token.")
        raise AuthenticationError(message="Send the token of the attempt: Authorization: Bearer <GPUFLEET_TOKEN>.")
    attempt = attempt_of_token(token)
    if attempt is None:
        raise PermissionDenied("This is not the token of a running attempt.")
    return attempt
