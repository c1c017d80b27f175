"""`gpufleet person`: make the first superuser, or get somebody back in, from the machine that the console runs on."""

import argparse
import getpass
import sys
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from gpufleet.core.audit import Actor, audit_record
from gpufleet.core.models import User

SHELL = Actor(user=None, name="shell of the console", via="command")


class Command(BaseCommand):
    help = (
        "Make a person (person create NAME [--superuser]) or set a password (person password NAME). The password is prompted for, or read from stdin."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        kinds = parser.add_subparsers(dest="what", required=True)
        create = kinds.add_parser("create", help="create a person who signs in with a password")
        create.add_argument("username")
        create.add_argument("--name", default="", help="the name by which people know them")
        create.add_argument("--email", default="")
        create.add_argument("--superuser", action="store_true", help="may do everything, everywhere")
        password = kinds.add_parser("password", help="set a new password; ends all sessions of the person")
        password.add_argument("username")
        for kind in (create, password):
            kind.add_argument("--data-dir", help="folder of an embedded console (default: GPUFLEET_DATA_DIR, or ./data)")

    def handle(self, *, what: str, username: str, **options: Any) -> None:
        if what == "create":
            self._create(username.lower(), options)
        else:
            self._password(username)

    def _create(self, username: str, options: dict[str, Any]) -> None:
        if User.objects.filter(username__iexact=username).exists():
            raise CommandError(f"There is a person named {username} already; use: person password {username}")
        person = User(
            username=username, display_name=options["name"], email=options["email"], is_superuser=options["superuser"], is_staff=options["superuser"]
        )
        try:
            person.full_clean(exclude=["password", "public_id"])
        except ValidationError as fault:
            raise CommandError("; ".join(f"{field}: {' '.join(messages)}" for field, messages in fault.message_dict.items())) from None
        person.set_password(self._asked(person))
        with transaction.atomic():
            person.save()
            facts = {"username": username, "superuser": person.is_superuser}
            audit_record(actor=SHELL, action="person.create", kind="person", object_id=person.public_id, after=facts)
        self.stdout.write(f"{username} can sign in{' and may do everything' if person.is_superuser else '; give roles on the quota tree'}.")

    def _password(self, username: str) -> None:
        person = User.objects.filter(username=username).first()
        if person is None:
            raise CommandError(f"No person is named {username}.")
        person.set_password(self._asked(person))
        with transaction.atomic():
            person.save(update_fields=["password"])
            audit_record(actor=SHELL, action="person.password", kind="person", object_id=person.public_id)
        self.stdout.write(f"{username} has a new password. All of their sessions have ended.")

    def _asked(self, person: User) -> str:
        """From a terminal it is typed twice without being shown; from a pipe one line is read."""
        if sys.stdin.isatty():
            password = getpass.getpass("Password: ")
            if getpass.getpass("Again: ") != password:
                raise CommandError("The two are not the same.")
        else:
            password = sys.stdin.readline().rstrip("\n")
        try:
            validate_password(password, person)
        except ValidationError as fault:
            raise CommandError(" ".join(fault.messages)) from None
        return password
