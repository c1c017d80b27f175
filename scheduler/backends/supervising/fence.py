"""Limits on what a worker takes of its host."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Fence:
    """A cgroup (v2) of its own for all that a worker starts, with what it asked for of the host as limits. `missing` says why there is none."""

    def __init__(self, wanted: dict[str, Any] | None) -> None:
        self.missing = ""
        self.folder = Path(wanted["folder"]) if wanted else None
        if self.folder is not None:
            try:
                self._set_up(self.folder, wanted["files"] if wanted else {})
            except OSError as fault:
                self.missing = f"{fault.filename or self.folder}: {fault.strerror or fault}"
                self._remove()

    def _set_up(self, folder: Path, files: dict[str, str]) -> None:
        with contextlib.suppress(OSError):  # done already, or not ours to do: then the files are there, or what follows says that they are not
            (folder.parent / "cgroup.subtree_control").write_text("+memory +cpu")
        folder.mkdir(exist_ok=True)
        for name, value in ({"cgroup.procs": ""} | files).items():
            with (folder / name).open("r+") as file:  # never made: in a folder that is no cgroup a file would limit nothing
                file.write(value)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What is started here begins inside, so it can't have started anything outside before."""
        if self.folder is None:
            yield
            return
        home = self._home(self.folder)
        self._enter(self.folder)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # where that is not allowed we stay inside: we need next to nothing
                self._enter(home)

    def _enter(self, folder: Path) -> None:
        with (folder / "cgroup.procs").open("r+") as file:
            file.write(str(os.getpid()))

    def _home(self, folder: Path) -> Path:
        top = folder
        while (top.parent / "cgroup.procs").exists():
            top = top.parent
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        return top / next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended something of it for using more memory than it may."""
        try:
            lines = (self.folder / "memory.events").read_text().splitlines() if self.folder is not None else []
        except OSError:
            return False
        return any(int(line.split()[1]) > 0 for line in lines if line.startswith("oom_kill "))

    def end(self) -> None:
        if self.folder is not None:
            with contextlib.suppress(OSError), (self.folder / "cgroup.kill").open("r+") as file:
                file.write("1")
            self._remove()

    def _remove(self) -> None:
        """Gone once all in it have; what the kernel has not taken down yet it will, and an empty cgroup costs nothing."""
        if self.folder is not None:
            for _ in range(20):
                with contextlib.suppress(OSError):
                    self.folder.rmdir()
                if not self.folder.exists() or not (self.folder / "cgroup.procs").exists():
                    break
                time.sleep(0.05)
        self.folder = None
