"""manage.py seed_demo: put the demo fleet into an empty database."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gpufleet.core.times import now
from gpufleet.demo.fleet import PLANS
from gpufleet.demo.seed import DatabaseNotEmpty, demo_seed


class Command(BaseCommand):
    help = "Fill an empty database with the demo fleet, its company and its last hours."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("size", choices=sorted(PLANS), help="small: 512 GPUs, large: 4,000 GPUs")
        parser.add_argument("--seed", type=int, default=1, help="another number gives another past (default: 1)")
        parser.add_argument("--hours", type=float, help="how long the past of its jobs is (default: 24 for the small demo, 12 for the large)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            seeded = demo_seed(size=options["size"], seed=options["seed"], now=now(), hours=options["hours"])
        except DatabaseNotEmpty as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"The {options['size']} demo is in: {seeded.nodes} nodes, {seeded.gpus} GPUs, {seeded.people} people, {seeded.jobs} jobs.")
