"""Are the settings safe? What can't be read at all has stopped the program before."""

import stat
from collections.abc import Iterator

from django.conf import settings
from django.core import checks as django_checks

from gpufleet.doctor import Finding

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def key_is_private() -> Iterator[Finding]:
    path = settings.DATA_DIR / "secret_key"
    if path.exists() and path.stat().st_mode & OTHERS:
        yield Finding(
            f"{path} can be read by other users.",
            "Anyone that reads it can sign in as any user.",
            f"chmod 600 {path}, and if others use this machine delete it: a new one is made, and everybody signs in again.",
        )


def database_is_private() -> Iterator[Finding]:
    database = settings.DATABASES["default"]
    if database["ENGINE"] != "gpufleet.core.sqlite":
        return
    folder = settings.DATA_DIR
    if folder.exists() and folder.stat().st_mode & stat.S_IWOTH and not folder.stat().st_mode & stat.S_ISVTX:
        yield Finding(
            f"Everybody on this machine may write to {folder}.",
            "They can replace the database and the key.",
            f"chmod 700 {folder}",
        )


def django_agrees() -> Iterator[Finding]:
    for message in django_checks.run_checks(include_deployment_checks=settings.PRODUCTION):
        if message.level >= django_checks.WARNING:
            yield Finding(f"{message.id}: {message.msg}", "Django found it.", message.hint or "See the documentation of Django's system checks.")


CHECKS = {"the key is private": key_is_private, "the folder is private": database_is_private, "Django's own checks": django_agrees}
