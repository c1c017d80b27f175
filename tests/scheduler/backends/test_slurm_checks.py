"""Each step of the way to a Slurm cluster fails by its own name, with what to do: on a real Slurm, with what is wrong being really wrong."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.backends.base import BackendError
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.values import Settings
from scheduler.models import Cluster, InventoryImport, SlurmCluster
from scheduler.services.hardware.checks import Step
from scheduler.services.hardware.removing import cluster_remove
from scheduler.services.hardware.slurm import slurm_connect
from scheduler.services.hardware.slurm_checks import slurm_check
from tests import builders
from tests.scheduler.backends.test_slurm_end_to_end import shared  # noqa: F401 - a fixture
from tests.servers import free_port, wait_until
from tests.slurm import PATH, Slurm

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
USER = "nobody" if os.getuid() == 0 else ""


@pytest.fixture
def there(slurm, shared) -> Settings:  # noqa: F811
    return Settings(conf=str(slurm.conf), user=USER, folder=str(shared))


def results(steps: list[Step]) -> dict[str, str]:
    return {step.name: step.result for step in steps}


def failed(settings: Settings) -> tuple[str, str]:
    """The one step that fails, and what is said of it. Nothing is submitted then."""
    steps = slurm_check(settings)
    assert [step.result for step in steps].count("failed") == 1, [(step.name, step.told) for step in steps]
    assert results(steps)["submission"] in ("skipped", "failed")
    step = next(step for step in steps if step.result == "failed")
    assert step.findings[0].do
    return step.name, step.told


def changed(slurm: Slurm, tmp_path: Path, **values: object) -> str:
    """A slurm.conf with other values."""
    text = slurm.conf.read_text()
    for name, value in values.items():
        text = "\n".join(f"{name}={value}" if line.startswith(f"{name}=") else line for line in text.splitlines()) + "\n"
    for file in slurm.conf.parent.glob("*.conf"):
        shutil.copy(file, tmp_path)
    (tmp_path / "slurm.conf").write_text(text)
    return str(tmp_path / "slurm.conf")


@pytest.fixture
def stranger(slurm, tmp_path) -> Iterator[str]:
    """A slurm.conf whose munged has another key than the cluster's."""
    (tmp_path / "munge.key").write_bytes(os.urandom(128))
    (tmp_path / "munge.key").chmod(0o600)
    run = slurm.dir / "run"
    files = {"key-file": tmp_path / "munge.key", "socket": run / "other.sock", "pid-file": run / "other.pid", "log-file": run / "other.log"}
    slurm.sh("munged", *(f"--{name}={value}" for name, value in files.items()), f"--seed-file={run}/other.seed", "--num-threads=2", "--force")
    yield changed(slurm, tmp_path, AuthInfo=f"socket={run}/other.sock")
    os.kill(int((run / "other.pid").read_text()), signal.SIGTERM)


def test_a_cluster_in_order_passes_every_step(there):
    steps = slurm_check(there)

    assert {name: result for name, result in results(steps).items() if result != "ok"} == {"verification on nodes": "warning"}
    seen = {step.name: step.seen for step in steps}
    assert seen["nodes"] == "4: gpu001, gpu002, gpu003, gpu004; GPUs h100 × 32; features h100"
    assert seen["version"].startswith("22.05")
    assert "held and cancelled" in seen["submission"]


def test_without_a_munged_credentials_fail_and_no_cluster_is_empty(slurm, there, tmp_path):
    without = replace(there, conf=changed(slurm, tmp_path, AuthInfo=f"socket={tmp_path}/none"))

    assert failed(without)[0] == "credentials"
    with pytest.raises(BackendError):  # sinfo itself ends with 0 and an empty list
        SlurmClient(without).nodes()


def test_another_munge_key_fails_at_credentials(there, stranger):
    name, told = failed(replace(there, conf=stranger))

    assert name == "credentials"
    assert "Zero Bytes" in told
    with pytest.raises(BackendError):
        SlurmClient(replace(there, conf=stranger)).nodes()


@pytest.mark.parametrize(
    ("wrong", "step", "words"),
    [
        ({"partition": "none"}, "partition", "There is no partition none; Slurm has main."),
        ({"folder": "/none/here"}, "folder", "The console cannot write to /none/here: No such file or directory."),
        ({"folder": "/proc/1"}, "folder", "The console cannot write to /proc/1"),
        ({"folder": "shared"}, "folder", "is an absolute path"),
        ({"user": "nobody-here"}, "user", "There is no user nobody-here on the console's machine."),
        ({"user": "root"}, "user", "never run as root"),
    ],
)
def test_what_is_wrong_is_named_at_its_step(there, wrong, step, words):
    name, told = failed(replace(there, **wrong))

    assert name == step
    assert words in told


def test_a_partition_that_is_down_is_named(slurm, there):
    slurm.sh("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        assert failed(replace(there, partition="main")) == ("partition", "Partition main is down.")
    finally:
        slurm.sh("scontrol", "update", "PartitionName=main", "State=UP")


def test_a_folder_that_nobody_may_write_to_is_named(there, tmp_path):
    """Root may write anywhere, but to a file system that is read-only."""
    tmp_path.chmod(0o500)

    name, told = failed(replace(there, folder="/sys" if os.getuid() == 0 else str(tmp_path)))

    assert (name, "The console cannot write to" in told) == ("folder", True)


def test_slurmrestd_is_read_and_one_of_another_cluster_does_not_accept_the_token(slurm, there, rest, tmp_path):
    step = next(step for step in slurm_check(replace(there, rest_url=rest)) if step.name == "slurmrestd")
    assert (step.result, step.seen) == ("ok", f"4 nodes at {rest}")

    assert failed(replace(there, rest_url=f"http://127.0.0.1:{free_port()}"))[0] == "slurmrestd"
    other = Slurm(nodes=1, gpus=1, leaf=1)
    try:
        # The console's commands lead to one cluster, the address to the other: the token is of another key.
        shared = other.dir / "shared"
        shared.mkdir()
        name, told = failed(replace(there, conf=str(other.conf), folder=str(shared), rest_url=rest))
    finally:
        other.stop()
    assert name == "slurmrestd", told


@pytest.mark.parametrize(
    ("answer", "differing"),
    [({}, "gpu001, gpu002, gpu003, gpu004"), ({"nodes": [{"name": f"gpu00{number}"} for number in (1, 2, 3, 5)]}, "gpu004, gpu005")],
)
def test_slurmrestd_of_another_cluster_hinders(there, answer, differing):
    """One with the same key accepts the token."""
    with answering(json.dumps(answer)) as address:
        assert failed(replace(there, rest_url=address)) == (
            "slurmrestd",
            f"slurmrestd and Slurm's commands do not have the same nodes: {differing}.",
        )


def test_an_address_that_speaks_no_http_is_told(there):
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=_greet, args=(server,), daemon=True).start()
        name, told = failed(replace(there, rest_url=f"http://127.0.0.1:{server.getsockname()[1]}"))

    assert (name, "slurmrestd does not answer at" in told) == ("slurmrestd", True), told


def _greet(server: socket.socket) -> None:
    asking, _ = server.accept()
    with asking:
        asking.recv(4096)
        asking.sendall(b"SSH-2.0-OpenSSH\r\n")


@contextmanager
def answering(text: str) -> Iterator[str]:
    """An address where everything that is asked for is this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def stand_in(tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """A program in place of one of Slurm's, which it calls as $REAL."""

    def written(name: str, text: str) -> None:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\nREAL={shutil.which(name, path=PATH)}\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{PATH}")

    return written


@pytest.fixture
def answers(stand_in) -> Callable[[str], None]:
    """Slurm's answers to scontrol, edited on their way: an old version and a slow clock cannot be had otherwise."""
    return lambda by: stand_in("scontrol", f"$REAL \"$@\" | sed -E '{by}'")


def test_a_version_that_is_too_old_fails_and_a_newer_one_is_told(there, answers):
    answers("s/^(SLURM_VERSION *= ).*/\\120.11.9/")
    assert failed(there) == (
        "version",
        "Slurm is version 20.11.9; 22.05 or newer is needed. Slurm's controller is version 20.11.9; nodes have 22.05.8: gpu001, gpu002, gpu003, "
        "gpu004.",
    )
    answers("s/^(SLURM_VERSION *= ).*/\\124.05.2/")
    assert results(slurm_check(there))["version"] == "warning"


def test_a_clock_that_is_off_is_told_and_does_not_hinder(there, answers):
    answers("1s/.*/Configuration data as of 1000000000/")

    steps = slurm_check(there)

    assert results(steps)["clock"] == "warning"
    assert not any(step.hinders for step in steps)


def test_steps_that_take_long_do_not_put_the_clock_off(there, stand_in):
    stand_in("sinfo", 'sleep 1.5; exec $REAL "$@"')  # asked twice: together more than the second that is forgiven, as Slurm tells whole ones

    assert next(step.told for step in slurm_check(there) if step.name == "clock") == "0 s apart"


def held(slurm: Slurm) -> list[str]:
    return [name for name in slurm.sh("squeue", "--noheader", "--format=%j").split() if name.startswith("gpufleet-check")]


def test_a_submission_that_is_answered_too_late_is_cancelled(slurm, there, stand_in):
    stand_in("sbatch", '$REAL "$@" >/dev/null; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1')

    name, told = failed(there)

    assert (name, "does not answer" in told) == ("submission", True)
    assert held(slurm) == []


@pytest.mark.parametrize("late", [False, True])
def test_a_job_that_cannot_be_cancelled_is_named(slurm, there, stand_in, late):
    stand_in("scancel", 'echo "scancel: error: Socket timed out on send/recv operation" >&2; exit 1')
    if late:
        stand_in("sbatch", '$REAL "$@" >/dev/null; echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1')

    step, told = failed(there)

    (left,) = held(slurm)
    slurm.sh("scancel", f"--name={left}")
    assert (step, left in told) == ("submission", True), told


@pytest.mark.parametrize(("enforced", "result"), [("none", "warning"), ("wckeys", "warning"), ("associations,limits", "failed"), ("ALL", "failed")])
def test_an_account_that_is_missing_hinders_only_where_slurm_asks_for_it(there, answers, stand_in, enforced, result):
    """Without slurmdbd; tests/scheduler/backends/test_slurm_quotas.py has one."""
    stored = "s/^(AccountingStorageType *= ).*/\\1accounting_storage\\/slurmdbd/"
    answers(f"{stored};s/^(AccountingStorageEnforce *= ).*/\\1{enforced}/")
    stand_in("sacctmgr", "echo 'optics|'; echo 'optics|somebody'")

    told = {name: next(step for step in slurm_check(replace(there, account=name)) if step.name == "account") for name in ("optics", "none")}

    assert {step.result for step in told.values()} == {result}
    assert told["none"].told == "There is no account none; Slurm has optics."
    assert "is not in the account optics." in told["optics"].told


def test_a_controller_that_is_off_is_the_only_step_that_is_tried(slurm, there, monkeypatch):
    monkeypatch.setitem(SlurmClient.__init__.__kwdefaults__, "seconds", 1)
    slurm.end("slurmctld")
    try:
        steps = slurm_check(there)
    finally:
        slurm.start_controller()
        wait_until(lambda: slurm.idle() == set(slurm.names), seconds=60, what="every node to be idle")

    assert [step.result for step in steps] == ["failed"] + ["skipped"] * (len(steps) - 1)
    assert "sinfo must answer" in steps[0].findings[0].do


def test_a_slurmrestd_without_the_version_that_is_read_is_a_warning_and_commands_are_used(there, other_rest):
    step = next(step for step in slurm_check(replace(there, rest_url=other_rest)) if step.name == "slurmrestd")

    assert (step.result, step.seen) == ("warning", f"{other_rest} is not read")
    assert step.told == f"slurmrestd at {other_rest} has v0.0.36, v0.0.37; gpufleet reads v0.0.38. Slurm's commands are used instead."


# The page


@pytest.fixture
def sent(there, monkeypatch, settings) -> dict[str, str]:
    monkeypatch.setenv("SLURM_CONF", there.conf)
    settings.SLURM_USERS = ("nobody",) if USER else ()
    return {"cluster": "hpc", "user": USER, "folder": there.folder, "keep": "1"}


def test_a_step_that_fails_is_told_at_its_field_and_nothing_is_stored(sent, personas):
    operator, audit = personas.client("operator"), AuditEntry.objects.count()

    page = operator.post(reverse("cluster_add"), sent | {"partition": "none"})

    text = page.content.decode()
    assert page.status_code == 422
    assert page.context["form"].errors == {"partition": ["There is no partition none; Slurm has main."]}
    assert "What to do: Name one of these." in text
    assert "1 step failed; nothing was changed." in text
    assert not Cluster.objects.exists()
    assert AuditEntry.objects.count() == audit


def test_only_addresses_of_slurmrestd_that_the_settings_name_are_offered(sent, personas, settings, rest):
    """It is sent a token of the console's user."""
    operator = personas.client("operator")
    assert "slurmrestd at" not in operator.get(reverse("cluster_add")).content.decode()
    settings.SLURM_REST_URLS = (rest,)

    refused = operator.post(reverse("cluster_add"), sent | {"rest_url": "http://127.0.0.1:1"})
    assert (refused.status_code, list(refused.context["form"].errors)) == (422, ["rest_url"])
    assert operator.post(reverse("cluster_add"), sent | {"rest_url": rest}).status_code == 302
    assert SlurmCluster.objects.get().rest_url == rest


@pytest.mark.parametrize("url", ["ftp://slurm:6820", "http://", "http://a:b@slurm:6820", "http://slurm:6820/#x", "http://slurm:70000"])
def test_an_address_that_is_none_is_refused_before_anything_is_tried(there, url, personas):
    with pytest.raises(ValidationError) as refused:
        slurm_connect(access=personas.access("operator"), cluster="hpc", settings=replace(there, conf="/none", rest_url=url), now=now())

    assert list(refused.value.message_dict) == ["rest_url"]


def test_a_connection_is_changed_on_the_same_page_and_keeps_what_only_the_command_line_may_say(sent, there, personas):
    operator = personas.client("operator")
    operator.post(reverse("cluster_add"), sent)
    SlurmCluster.objects.update(conf=there.conf)
    tag = SlurmCluster.objects.get().tag

    assert operator.get(f"{reverse('cluster_add')}?cluster=%00").status_code == 200
    shown = operator.get(f"{reverse('cluster_add')}?cluster=hpc").content.decode()
    operator.post(f"{reverse('cluster_add')}?cluster=hpc", sent | {"partition": "main", "cluster": " hpc"})

    assert f'value="{there.folder}"' in shown
    row = SlurmCluster.objects.get()
    assert (row.partition, row.conf, row.tag) == ("main", there.conf, tag)
    assert AuditEntry.objects.filter(action="slurm.connect").last().before["partition"] == ""


def test_a_cluster_that_was_removed_is_added_again_with_an_entry_in_the_audit_log(sent, personas):
    operator = personas.client("operator")
    operator.post(reverse("cluster_add"), sent)
    first = AuditEntry.objects.get(action="slurm.connect")
    removed = now()
    cluster_remove(access=personas.access("operator"), cluster=Cluster.objects.get(), reason="Sold.", confirm="hpc", now=removed)

    assert operator.post(reverse("cluster_add"), sent).status_code == 302

    entry = AuditEntry.objects.filter(action="slurm.connect").latest("pk")
    assert first.after["cluster"] == "hpc"
    assert (entry.object_id, entry.after["cluster"]) == (first.object_id, "hpc")
    assert entry.before["removed"] == f"{removed:%Y-%m-%d %H:%M:%S}"
    assert Cluster.objects.get().removed_at is None


@pytest.mark.parametrize("name", ["hpc", " hpc "])
def test_the_name_of_a_connected_cluster_leads_to_its_connection(sent, personas, name):
    operator = personas.client("operator")
    operator.post(reverse("cluster_add"), sent)
    before = SlurmCluster.objects.values().get()

    page = operator.post(reverse("cluster_add"), sent | {"cluster": name, "partition": "main"})

    assert (page.status_code, list(page.context["form"].errors)) == (422, ["cluster"])
    assert f'hpc is connected already. Change it on its page <a href="{reverse("cluster_add")}?cluster=hpc">' in page.content.decode()
    assert SlurmCluster.objects.values().get() == before


def test_the_page_says_that_a_slurmrestd_is_not_read(sent, personas, settings, other_rest):
    settings.SLURM_REST_URLS = (other_rest,)

    page = personas.client("operator").post(reverse("cluster_add"), sent | {"rest_url": other_rest}, follow=True)

    assert "has v0.0.36, v0.0.37; gpufleet reads v0.0.38. Slurm&#x27;s commands are used instead." in page.content.decode()


def test_an_address_that_the_page_did_not_show_is_kept(sent, there, personas, settings, rest):
    """slurmrestd was named by command while the page was open."""
    operator = personas.client("operator")
    operator.post(reverse("cluster_add"), sent)
    SlurmCluster.objects.update(rest_url=rest)

    assert operator.post(f"{reverse('cluster_add')}?cluster=hpc", sent | {"partition": "main"}).status_code == 302

    row = SlurmCluster.objects.get()
    assert (row.partition, row.rest_url) == ("main", rest)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("cluster", "my cluster", "--cluster: Use letters, digits, - and _ only."),
        ("cluster", "a" * 61, "--cluster: Use at most 60 characters"),
        ("partition", "a" * 61, "--partition: Use at most 60 characters"),
        ("node-logs", "/" + "a" * 300, "--node-logs: Use at most 300 characters"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused_by_its_option(there, option, value, words):
    options = {"cluster": "hpc", "conf": there.conf, "folder": there.folder, "user": there.user} | {option: value}
    with pytest.raises(CommandError) as refused:
        call_command("inventory", "connect-slurm", *(word for name, one in options.items() for word in (f"--{name}", one)))

    assert words in str(refused.value)
    assert not Cluster.objects.exists()


def test_a_name_of_another_kind_of_cluster_is_refused_before_anything_is_tried(sent, personas):
    builders.cluster("hpc", backend="simulated")
    page = personas.client("operator").post(reverse("cluster_add"), sent)

    assert page.context["form"].errors == {"cluster": ["Cluster hpc runs on the back-end simulated."]}
    assert not SlurmCluster.objects.exists()
    assert not InventoryImport.objects.exists()
