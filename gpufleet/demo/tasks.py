"""Beat's door to the demo."""

from celery import shared_task

from gpufleet.core.times import now
from gpufleet.demo.present import demo_advance


@shared_task
def demo_step() -> None:
    demo_advance(now=now())
