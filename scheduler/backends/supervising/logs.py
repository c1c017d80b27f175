"""What the processes of a worker write, kept in segments without its secrets."""

import contextlib
import json
import re
from pathlib import Path
from typing import BinaryIO

LONGEST_LINE = 64 * 1024
REDACTED = b"[secret]"
# Shorter secrets would blacken ordinary words; so would short lines of long ones.
SHORTEST_SECRET = 4
SHORTEST_LINE = 8


class Redactor:
    """Replaces secrets in a stream, wherever it is cut. What may be the beginning of a secret is held back until it is known not to be.

    A secret of several lines is known as a whole, as it looks with its line ends escaped, and by each of its lines that is long enough.
    """

    def __init__(self, secrets: list[bytes]) -> None:
        forms: set[bytes] = set()
        for secret in secrets:
            forms |= {
                secret,
                secret.replace(b"\n", b"\r\n"),
                secret.replace(b"\n", b"\\n"),
                json.dumps(secret.decode(errors="replace"))[1:-1].encode(),
            }
            if b"\n" in secret:
                forms |= {line.strip() for line in secret.split(b"\n") if len(line.strip()) >= SHORTEST_LINE}
        self.forms = sorted((one for one in forms if len(one) >= SHORTEST_SECRET), key=lambda one: (-len(one), one))
        self.pattern = re.compile(b"|".join(map(re.escape, self.forms))) if self.forms else None
        self.heads = re.compile(b"(?=%s)" % b"|".join(re.escape(form[:SHORTEST_SECRET]) for form in self.forms))
        self.longest = max(map(len, self.forms), default=0)

    def pass_on(self, data: bytes, *, last: bool = False) -> tuple[bytes, bytes]:
        """What may be shown of it, and what is held back."""
        if self.pattern is None:
            return data, b""
        shown: list[bytes] = []
        begin = 0
        for match in self.pattern.finditer(data):
            if not last and self._may_go_on(data, match.start()):
                return b"".join([*shown, data[begin : match.start()]]), data[match.start() :]
            shown += [data[begin : match.start()], REDACTED]
            begin = match.end()
        end = len(data)
        if not last:
            early = [match.start() for match in self.heads.finditer(data, max(begin, end - self.longest + 1))]
            late = range(max(begin, end - SHORTEST_SECRET + 1), end)
            end = next((place for place in (*early, *late) if self._may_go_on(data, place)), end)
        return b"".join([*shown, data[begin:end]]), data[end:]

    def _may_go_on(self, data: bytes, place: int) -> bool:
        """Whether all from here on is the beginning of something longer."""
        length = len(data) - place
        rest = data[place:] if length < self.longest else b""
        return bool(rest) and any(len(form) > length and form.startswith(rest) for form in self.forms)


class Log:
    """Segments of a bounded size; only so many are kept. Secrets are blackened before anything is written."""

    def __init__(self, folder: Path, *, segment: int, segments: int, secrets: list[bytes]) -> None:
        self.folder, self.segment, self.segments = folder, segment, segments
        self.redactor = Redactor(secrets)
        # Behind what an earlier worker of that name has written.
        self.offset = self.begun = max((int(path.suffix[1:]) + path.stat().st_size for path in folder.glob("log.*")), default=0)
        self.file = self._open()
        self.held: dict[int, bytes] = {}  # what may be the beginning of a secret
        self.rest: dict[int, bytes] = {}  # lines that have not ended

    def _open(self) -> BinaryIO:
        return (self.folder / f"log.{self.offset:015}").open("ab", buffering=0)

    def feed(self, source: int, data: bytes, prefix: bytes) -> None:
        """Take in what a process wrote; whole lines are written on."""
        shown, self.held[source] = self.redactor.pass_on(self.held.pop(source, b"") + data)
        *lines, rest = (self.rest.pop(source, b"") + shown).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        if lines:
            self.write(b"".join(prefix + line + b"\n" for line in lines))
        if rest:
            self.rest[source] = rest

    def drain(self, source: int, prefix: bytes) -> None:
        shown, _ = self.redactor.pass_on(self.held.pop(source, b""), last=True)
        if rest := self.rest.pop(source, b"") + shown:
            *lines, end = rest.split(b"\n")
            self.write(b"".join(prefix + line + b"\n" for line in [*lines, *([end] if end else [])]))

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            # A full disk must not stop the work: what can't be written is missing from the log.
            while data:
                written = self.file.write(data[: self.begun + self.segment - self.offset])
                data, self.offset = data[written:], self.offset + written
                if self.offset - self.begun >= self.segment:
                    self._turn_over()

    def _turn_over(self) -> None:
        self.file.close()
        self.begun = self.offset
        self.file = self._open()
        for old in sorted(self.folder.glob("log.*"))[: -self.segments]:
            old.unlink(missing_ok=True)
