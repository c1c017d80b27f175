"""What a schedule says besides its job: read by the API, the submission form and files alike."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as SchemaError

from scheduler.jobs.reading import Faults, faults_of
from scheduler.jobs.shown import Shown
from scheduler.models import CatchUp, Overlap

LATENESS = "How late a run may still be submitted, in seconds. Null: as late as it comes; with catch_up none five minutes."


class ScheduleIn(BaseModel):
    # What is misspelt would be taken as not said: another overlap, no end.
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200)
    description: dict[str, Any] = Field(description="The job, as `POST /jobs` takes it. Its name may be left out: then it is the schedule's.")
    cron: Annotated[str, Shown("Due", kind="cron")] = Field(max_length=200, description="Minute, hour, day of the month, month, day of the week.")
    zone: Annotated[str, Shown("Time zone", "Such as Europe/Berlin; its summer time is kept.")] = Field(
        "UTC", max_length=100, description="The time zone in which it is due."
    )
    overlap: Annotated[str, Shown("If an earlier run has not ended", choices=tuple(Overlap.choices), blank=Overlap.SKIP.label)] = Field(
        Overlap.SKIP.value,
        max_length=20,
        description="While jobs of an earlier run have not ended: allow, skip or replace.",
        json_schema_extra={"enum": list(Overlap.values)},
    )
    catch_up: Annotated[str, Shown("Times that were missed", choices=tuple(CatchUp.choices), blank=CatchUp.LAST.label)] = Field(
        CatchUp.LAST.value,
        max_length=20,
        description="Of times that were missed: none, last or all.",
        json_schema_extra={"enum": list(CatchUp.values)},
    )
    start_within_s: Annotated[int | None, Shown("Submitted at most so late", "Such as 90m, or seconds. Empty: as late as it comes.")] = Field(
        None, description=LATENESS
    )
    starts_at: Annotated[datetime | None, Shown("From (UTC)")] = Field(
        None, description="Not due before. A time in the past is caught up with, as catch_up says."
    )
    ends_at: Annotated[datetime | None, Shown("Until (UTC)", "Not due after.")] = Field(None, description="Not due after.")


def schedule_read(raw: Mapping[str, Any]) -> tuple[dict[str, Any], Faults]:
    """What can be read of what a form says, and what is wrong with the rest."""
    try:
        return ScheduleIn.model_validate(raw).model_dump(), {}
    except SchemaError as error:
        faults = faults_of(error)
    rest = {key: value for key, value in raw.items() if key not in faults}
    stand_ins = {"name": "", "cron": "", "description": {}}
    return ScheduleIn.model_validate(stand_ins | rest).model_dump(), faults
