"""Has the machine room, the right time, its GPU driver, and the files that browsers ask for?"""

import shlex
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pynvml
from django.conf import settings
from django.contrib.staticfiles import finders
from django.db import connection
from django.utils import timezone

from gpufleet.core.private import readable_by_others
from gpufleet.doctor import Finding
from scheduler.services.hardware.local_checks import local_check

LEAST_FREE_BYTES = 1 << 30
MOST_APART = timedelta(seconds=2)
ASSETS = ("css/tokens.css", "css/base.css", "js/shell.js", "vendor/plotly/plotly.min.js")


def room_on_disk() -> Iterator[Finding]:
    folder: Path = settings.DATA_DIR
    free = shutil.disk_usage(folder if folder.exists() else folder.parent).free
    if free < LEAST_FREE_BYTES:
        yield Finding(
            f"{free // (1 << 20)} MiB are free in {folder}.",
            "A database that can't grow stops every write.",
            "Make room, or move the folder and say so with GPUFLEET_DATA_DIR.",
        )


def clocks_agree() -> Iterator[Finding]:
    if connection.vendor != "postgresql":
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (theirs,) = cursor.fetchone()
    apart = abs(timezone.now() - theirs)
    if apart > MOST_APART:
        yield Finding(
            f"This machine and the database disagree about the time by {apart.total_seconds():.1f} s.",
            "Leases run out early or late, and events appear out of order.",
            "Synchronise both clocks (chrony, systemd-timesyncd).",
        )


def gpu_driver() -> Iterator[Finding]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        yield Finding("This machine has no NVIDIA driver.", "It can't read GPUs of its own; that is normal for a console.", "Nothing.", note=True)
        return
    except pynvml.NVMLError as error:
        yield Finding(f"The NVIDIA driver does not answer: {error}.", "GPUs of this machine can't be read.", "See nvidia-smi and the kernel log.")
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()
    counted = "1 GPU" if count == 1 else f"{count} GPUs"
    yield Finding(
        f"The NVIDIA driver answers and counts {counted}.",
        "They can be discovered from this machine.",
        "Nothing.",
        note=True,
    )


def local_jobs() -> Iterator[Finding]:
    """Where jobs run on this machine: the steps that the page *Add a cluster* tries."""
    if settings.LOCAL["LOCAL"]:
        for step in local_check():
            yield from step.findings


def static_files() -> Iterator[Finding]:
    missing = [name for name in ASSETS if not finders.find(name)]
    if missing:
        yield Finding(
            f"Files that browsers ask for are missing: {', '.join(missing)}.",
            "Pages come without style or stand still.",
            "Install gpufleet again (make setup); its folders static/ and templates/ belong beside the program.",
        )


def private_files() -> Iterator[Finding]:
    for path, mode in readable_by_others(settings.DATA_DIR):
        yield Finding(
            f"{path} has the mode {mode}.",
            "Other users of this machine can read sessions, password hashes or the key.",
            f"chmod {'700' if path.is_dir() else '600'} {shlex.quote(str(path))}",
        )


CHECKS = {
    "private files": private_files,
    "room on disk": room_on_disk,
    "clocks agree": clocks_agree,
    "GPU driver": gpu_driver,
    "static files": static_files,
    "local jobs": local_jobs,
}
