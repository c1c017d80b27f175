"""Django's way to the commands that need it. One that there is not is told as the other commands tell a fault."""

from typing import Any

from django.core.management import ManagementUtility, get_commands

from gpufleet.client import USAGE, ClientError
from gpufleet.overview import ours, unknown


class Management(ManagementUtility):
    def fetch_command(self, subcommand: str) -> Any:
        there = get_commands()
        if subcommand not in there:
            raise ClientError(USAGE, unknown(subcommand, sorted({*ours(), *there})))
        return super().fetch_command(subcommand)
