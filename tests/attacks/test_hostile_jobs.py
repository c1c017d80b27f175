"""A hostile submitter on a console that runs as root for two teams: blue tries to reach root, red's work and the scheduler, by jobs alone.

Everything is real: the console as a process, its API, jobs as processes of the machine. `tests/scheduler/backends/test_local_apart.py` has the same
laws one by one, and those that also hold where the tests do not run as root.
"""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scheduler.backends.local_accounts import namespaces_missing
from tests.attacks.bodies import MANIFESTS, links_to
from tests.scheduler.backends.scenes import open_folder
from tests.scheduler.backends.test_local_apart import SYSTEM_PYTHON, alive, escapes
from tests.servers import Manage, Prepared, Program, free_port, wait_until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.getuid() != 0, reason="only a console that runs as root has several teams' jobs on its machine"),
    pytest.mark.skipif(bool(namespaces_missing()), reason=f"no PID namespaces here: {namespaces_missing()}"),
]
UIDS = "740000-740099"
PREPARE = """
from datetime import timedelta
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.permissions import access_for_user
from quotas.models import Role, RoleBinding
from quotas.rules import NodeValues, Share
from quotas.services.nodes import node_create
from quotas.services.tokens import token_create
boss = User.objects.create_superuser("boss", password="x")
access = access_for_user(boss)
def add(name, kind, parent):
    values = NodeValues(kind, "", "", 1, 100, False, {"virtual": Share(8000 if parent is None else 4000, None)})
    return node_create(access=access, parent=parent, name=name, values=values, now=now())
lab = add("lab", "org", None)
for name in ("red", "blue"):
    team = add(name, "team", lab)
    person = User.objects.create_user(name, password="x")
    RoleBinding.objects.create(user=person, role=Role.SUBMITTER, node=team)
    own = access_for_user(person)
    made = token_create(access=own, owner=person, name="cli", scopes=["read", "submit"], node=None, expires_at=now() + timedelta(days=1), now=now())
    print("SECRET", made.secret)
"""


class Team:
    def __init__(self, name: str, url: str, token: str) -> None:
        self.name = name
        self.web = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False)

    def asks(self, body: str, **fields: Any) -> httpx.Response:
        launch = {"command": [SYSTEM_PYTHON, "-u", "-c", textwrap.dedent(body)], **fields.pop("launch", {})}
        described = {"name": "job", "quota": f"lab/{self.name}", "gpus": 1, "launch": launch, "grace_s": 5, **fields}
        return self.web.post("/jobs", json=described)

    def submits(self, body: str, **fields: Any) -> str:
        answer = self.asks(body, **fields)
        assert answer.status_code == 201, answer.text
        told = answer.json()
        return str(told["jobs"][0]["id"] if "jobs" in told else told["id"])

    def state(self, job: str) -> str:
        return str(self.web.get(f"/jobs/{job}").raise_for_status().json()["state"])

    def until(self, job: str, *states: str) -> None:
        wait_until(lambda: self.state(job) in states, seconds=90, what=f"{job} is {' or '.join(states)}")

    def log(self, job: str) -> str:
        answer = self.web.get(f"/jobs/{job}/logs", params={"limit": 100_000})
        return str(answer.json().get("text", "")) if answer.status_code == 200 else ""

    def does(self, body: str, **fields: Any) -> str:
        """Submit, wait for its end, and return what it printed."""
        job = self.submits(body, **fields)
        self.until(job, "completed", "failed")
        assert self.state(job) == "completed", self.web.get(f"/jobs/{job}").text + self.log(job)
        wait_until(lambda: self.log(job), seconds=30, what=f"the log of {job}")
        return self.log(job)


class Site:
    def __init__(self, manage: Manage, program: Program, url: str, shared: Path, tokens: list[str]) -> None:
        self.manage, self.program, self.url, self.shared = manage, program, url, shared
        self.red, self.blue = Team("red", url, tokens[0]), Team("blue", url, tokens[1])


@pytest.fixture(scope="module")
def site(prepared: Prepared) -> Iterator[Site]:
    with open_folder() as top:
        yield from attacked(prepared, top)


def attacked(prepared: Prepared, top: Path) -> Iterator[Site]:
    shared, kept = top / "shared", top / "secrets"
    for place in (shared, kept / "lab" / "red", kept / "lab" / "blue"):
        place.mkdir(parents=True)
    kept.chmod(0o700)
    shared.chmod(0o711)
    (kept / "lab" / "red" / "key").write_text("THE-KEY-OF-RED")
    (kept / "lab" / "blue" / "own").write_text("THE-KEY-OF-BLUE\nin two lines\n")
    settings = {
        "LOCAL": "on",
        "LOCAL_UIDS": UIDS,
        "LOCAL_CHECKPOINTS": str(shared),
        "SECRETS_DIR": str(kept),
        "VIRTUAL_GPUS": "8",
        "API_REQUESTS_PER_MINUTE": "1000000",
    }
    manage = prepared.migrated(top / "data", **{f"GPUFLEET_{name}": value for name, value in settings.items()})
    manage.data.chmod(0o700)
    manage.run("inventory", "discover", "--apply")
    said = manage.run("shell", "--verbosity", "0", "-c", PREPARE).stdout
    port = free_port()
    program = manage.start("manage.py", "up", "--port", str(port), name="up")
    program.wait_for(lambda: "answers at" in program.output(), what="the console to say that it answers")
    site = Site(manage, program, f"http://127.0.0.1:{port}", shared, [line.split()[1] for line in said.splitlines() if line.startswith("SECRET")])
    yield site
    wait_until(lambda: not ours(), seconds=60, what="no process of a job is left")
    program.stop()


def ours() -> list[str]:
    low, high = map(int, UIDS.split("-"))
    return [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and low <= _owner(entry) <= high]


def _owner(entry: Path) -> int:
    try:
        return entry.stat().st_uid
    except OSError:
        return -1


@pytest.fixture(scope="module")
def victim(site: Site) -> Iterator[str]:
    """Red's work, which has to be running after everything that blue does."""
    body = """
        import os, time
        open(os.path.join(os.environ["GPUFLEET_CHECKPOINT_DIR"], "model"), "w").write(os.environ["KEY"])
        print("up")
        time.sleep(3600)
    """
    job = site.red.submits(body, launch={"secrets": {"KEY": "key"}})
    site.red.until(job, "running")
    wait_until(lambda: list(site.shared.glob(f"{job}/1/model")), seconds=30, what="red's model")
    yield job
    site.red.web.post(f"/jobs/{job}/cancel", json={}).raise_for_status()


@pytest.fixture(autouse=True)
def unharmed(site: Site, victim: str) -> Iterator[None]:
    """After each attack red's job runs, an honest job comes through, and the console has nothing to complain of."""
    yield
    assert site.red.state(victim) == "running"
    assert site.red.does("print('honest')") == "honest\n"
    assert httpx.get(f"{site.url}/healthz", trust_env=False).json()["status"] == "ok"
    assert "Traceback" not in site.program.output()


def test_it_becomes_nobody_s_owner(site: Site, tmp_path: Path) -> None:
    """1: links where the console makes, owns, lists or reads something."""
    target = tmp_path / "of-root"
    target.mkdir(mode=0o700)
    job = site.blue.submits(links_to(target), retries=1)
    site.blue.until(job, "failed")

    said = site.blue.log(job).splitlines()
    assert {"refused ../2", "refused ../../planted", "stays"} <= set(said)
    assert (target.stat().st_uid, list(target.iterdir())) == (0, [])


def test_it_reads_nothing_of_the_console_s_nor_of_red_s(site: Site, victim: str) -> None:
    """2 and 5: databases, keys, logs, checkpoints, secrets, and what other processes have in memory, environment and command line."""
    marker = "in two " + "lines"
    body = f"""
        import glob, os, signal
        wanted = [b"KEY-OF-" + b"RED"]
        def tries(path):
            try:
                with open(path, "rb") as file:
                    return file.read(1_000_000)
            except OSError:
                return None
        for top in ({str(site.manage.data)!r}, {str(site.shared / victim)!r}, {str(site.shared.parent / "secrets")!r}, "/root"):
            for folder, _, names in os.walk(top):
                print("LISTED", folder)
                for name in names:
                    if tries(os.path.join(folder, name)) is not None:
                        print("READ", os.path.join(folder, name))
        for name in ("gpufleet.sqlite3", "secret_key", "console.lock", "up.log", "local/uids.json", "local/runs/{victim}.1/run.json"):
            if tries(os.path.join({str(site.manage.data)!r}, name)) is not None:
                print("READ", name)
        for path in glob.glob("/proc/[0-9]*/*"):
            if os.path.basename(path) in ("environ", "cmdline", "mem", "maps", "cwd", "root") and (text := tries(path)):
                if any(one in text for one in wanted):
                    print("READ", path)
        for pid in range(1, 70_000):
            if pid != os.getpid():
                try:
                    os.kill(pid, signal.SIGKILL)
                    print("ENDED", pid)
                except OSError:
                    pass
        for become in (os.setuid, os.setgid):
            try:
                become(0)
                print("BECAME ROOT")
            except OSError:
                pass
        print("key", os.environ["OWN"].replace("\\n", "|"))
        print({marker!r}[:6])
        print("done", os.getuid())
    """
    said = site.blue.does(body, launch={"secrets": {"OWN": "own"}})
    assert [line for line in said.splitlines() if not line.startswith(("key", "done", "in two"))] == []
    assert "THE-KEY-OF-BLUE" not in said
    assert "done 7400" in said


def test_it_names_no_secret_of_red_s(site: Site) -> None:
    for name in ("key", "nothing"):
        answer = site.blue.asks("print(1)", launch={"secrets": {"KEY": name}})
        assert answer.status_code == 422
        assert f"lab/blue has no secret {name}." in answer.text, "whether there is one or not"


def test_its_manifests_stop_nobody(site: Site) -> None:
    """3: nested brackets, a pipe, an endless device, folders of very many names, a loop of links, and all that while it goes on running."""
    assert "written" in site.blue.does(MANIFESTS)


def test_nothing_of_it_outlives_it(site: Site, tmp_path: Path) -> None:
    """5: at its natural end, and when it is cancelled."""
    ends, cancelled = str(tmp_path / "ends"), str(tmp_path / "cancelled")
    assert "escaped" in site.blue.does(escapes(ends))
    assert alive(ends) == []

    job = site.blue.submits(escapes(cancelled, then="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"))
    wait_until(lambda: alive(cancelled), seconds=90, what="it has escaped")
    assert site.blue.web.post(f"/jobs/{job}/cancel", json={}).status_code in (200, 202)
    site.blue.until(job, "cancelled")
    wait_until(lambda: not alive(cancelled), seconds=60, what="what escaped has ended")


def test_the_doctor_is_content(site: Site) -> None:
    assert "no findings" in site.manage.run("doctor").stdout
