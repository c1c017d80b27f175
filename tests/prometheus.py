"""A real Prometheus of a test's own, and an exporter with the shape of NVIDIA's that it scrapes."""

import base64
import json
import shutil
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpufleet.throwaway import Program, accepts, free_port, wait_until
from tests.servers import required

Sample = tuple[str, dict[str, str], str]  # metric, labels, value as the exporter writes it
USER, PASSWORD = "gpufleet", "pass-0f-Prometheus"
BCRYPT = "$2b$04$abcdefghijklmnopqrstuudKIBe5HCpV8R302O1cfXrNh5KEAtACW"  # of that password


class Answering(ABC):
    """A server in this process, at a port of its own."""

    def __init__(self) -> None:
        answering = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answering.answer(self.path, self.headers)
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *said: Any) -> None:
                """Tests have nothing to read here."""

        self.server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @abstractmethod
    def answer(self, path: str, headers: Message) -> tuple[int, bytes]:
        """Status and body."""

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Exporter(Answering):
    """Serves what `samples` holds, as text. A test changes the list and the next scrape has it."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        super().__init__()

    def answer(self, path: str, headers: Message) -> tuple[int, bytes]:
        return 200, self.text().encode()

    def text(self) -> str:
        return "".join(
            f"{metric}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}} {value}\n"
            for metric, labels, value in self.samples
        )


class Prometheus:
    """Scrapes the given exporters twice a second (or as often as asked). Where it is `guarded`, it answers only `USER` with `PASSWORD`."""

    def __init__(self, exporters: Sequence[int], *, every: str = "500ms", guarded: bool = False) -> None:
        found = shutil.which("prometheus")
        if found is None:
            required("prometheus", "Prometheus is not installed (Debian package: prometheus).")
            raise AssertionError("unreachable")
        self.folder = Path(tempfile.mkdtemp(prefix="gpufleet-prometheus-"))
        self.port = free_port()
        targets = [f"127.0.0.1:{port}" for port in exporters]
        scrape = {"job_name": "dcgm", "honor_labels": True, "static_configs": [{"targets": targets}]}
        settings = {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": [scrape]}
        (self.folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        self.headers = {"Authorization": f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"} if guarded else {}
        (self.folder / "web.yml").write_text(json.dumps({"basic_auth_users": {USER: BCRYPT}} if guarded else {}))
        flags = [
            f"--web.config.file={self.folder}/web.yml",
            f"--config.file={self.folder}/prometheus.yml",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self.program = Program([found, *flags, "--log.level=warn"], log=self.folder / "prometheus.log")
        self.program.wait_for(lambda: accepts(self.port) and self._ready(), what="Prometheus to be ready")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _ready(self) -> bool:
        try:
            return bool(self._get("/-/ready").status == 200)
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        return urllib.request.urlopen(urllib.request.Request(f"{self.url}{path}", headers=self.headers), timeout=5)

    def knows(self, metric: str, count: int) -> None:
        """Wait until so many series of a metric have been scraped."""

        def scraped() -> bool:
            with self._get(f"/api/v1/query?query=count({metric})") as answer:
                found = json.load(answer)["data"]["result"]
            return bool(found) and int(found[0]["value"][1]) == count

        wait_until(scraped, what=f"{count} series of {metric}")

    def value(self, query: str) -> float:
        """What Prometheus itself makes of a query that gives one number."""
        with self._get(f"/api/v1/query?query={urllib.parse.quote(query)}") as answer:
            (only,) = json.load(answer)["data"]["result"]
        return float(only["value"][1])

    def knows_nothing(self, metric: str) -> None:
        """Wait until a metric has no series any more."""

        def gone() -> bool:
            with self._get(f"/api/v1/query?query=count({metric})") as answer:
                return not json.load(answer)["data"]["result"]

        wait_until(gone, what=f"{metric} to be gone")

    def stop(self) -> None:
        self.program.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Gate(Answering):
    """As a gateway in front of a Prometheus: it lets through what carries these headers, and writes into its refusals what it was sent."""

    def __init__(self, behind: str, wanted: dict[str, str], *, refusal: int = 401) -> None:
        self.behind, self.wanted, self.refusal = behind, wanted, refusal
        self.asked: list[bool] = []
        super().__init__()

    def answer(self, path: str, headers: Message) -> tuple[int, bytes]:
        passes = all(headers.get(name) == value for name, value in self.wanted.items())
        self.asked.append(passes)
        if not passes:
            return self.refusal, str(dict(headers)).encode()
        try:
            with urllib.request.urlopen(f"{self.behind}{path}", timeout=5) as answer:
                return 200, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def gated(behind: str, wanted: dict[str, str], *, refusal: int = 401) -> Iterator[Gate]:
    gate = Gate(behind, wanted, refusal=refusal)
    try:
        yield gate
    finally:
        gate.stop()


@contextmanager
def scraped(*, every: str = "500ms", guarded: bool = False) -> Iterator[tuple[Exporter, Prometheus]]:
    """An exporter and a Prometheus that scrapes it."""
    exporter = Exporter()
    try:
        server = Prometheus([exporter.port], every=every, guarded=guarded)
        try:
            yield exporter, server
        finally:
            server.stop()
    finally:
        exporter.stop()
