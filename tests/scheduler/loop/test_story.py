"""The log of the scheduler: a line for each step of a job and each plan, joined by ids, and only of what was committed."""

import json
import logging

import pytest
from django.db import transaction

from gpufleet.core.logs import logging_config
from scheduler.models import Attempt, JobState, PlanRecord
from scheduler.services.loop import story
from scheduler.services.loop.steps import Steps, jobs_locked
from tests.builders import NOON, node
from tests.scheduler.loop.worlds import Loop, submit

pytestmark = pytest.mark.django_db


class Lines(logging.Handler):
    """Log lines as a collector gets them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_formatter())
        self.found: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


def _formatter() -> logging.Formatter:
    made = logging_config(level="info", form="json")["formatters"]["structured"]
    return made["()"](foreign_pre_chain=made["foreign_pre_chain"], processors=made["processors"])


@pytest.fixture
def lines():
    handler, logger = Lines(), logging.getLogger(story.NAME)
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler.found
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_a_start_is_told_with_job_attempt_plan_and_epoch(lines, django_capture_on_commit_callbacks):
    node(gpus=2)
    waiting = submit(gpus=1)

    with django_capture_on_commit_callbacks(execute=True):
        Loop().after(seconds=1).tick()

    (step,) = [line for line in lines if line["event"] == "job_step"]
    assert (step["job"], step["attempt"], step["before"], step["after"]) == (waiting.public_id, Attempt.objects.get().number, "queued", "starting")
    assert step["plan"] == PlanRecord.objects.get().pk
    assert step["epoch"] == PlanRecord.objects.get().epoch
    (plan,) = [line for line in lines if line["event"] == "plan"]
    assert (plan["plan"], plan["decided"], plan["dropped"]) == (PlanRecord.objects.get().pk, 1, 0)
    assert "snapshot_ms" in plan


def test_what_was_rolled_back_is_not_told(lines, django_capture_on_commit_callbacks):
    from gpufleet.core.live.news import News

    waiting = submit(gpus=1)
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        steps = Steps(now=NOON)
        steps.move(jobs_locked([waiting.pk])[waiting.pk], JobState.CANCELLED, "Trial.")
        steps.write(News())
        transaction.set_rollback(True)

    assert lines == []


@pytest.mark.parametrize(("form", "level", "told"), [("json", "info", "INFO"), ("text", "info", "WARNING"), ("text", "debug", "DEBUG")])
def test_a_terminal_is_not_buried_in_steps(form, level, told):
    assert logging_config(level=level, form=form)["loggers"]["scheduler.story"]["level"] == told
