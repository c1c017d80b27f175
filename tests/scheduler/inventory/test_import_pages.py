"""Import and discovery as people meet them: in the browser and on the command line."""

from io import StringIO
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command

from gpufleet.core.models import AuditEntry
from scheduler.hardware.discovery import NothingFound
from scheduler.models import InventoryImport, Node
from tests.scheduler.inventory.test_import_faults import CSV, YAML

pytestmark = pytest.mark.django_db
SAMPLES = Path(__file__).parents[3] / "docs/operate/samples"
IMPORT = "/inventory/import/"


def send(client, name, text, **fields):
    return client.post(IMPORT, {"file": SimpleUploadedFile(name, text.encode()), **fields})


@pytest.mark.parametrize("name", ["inventory.yaml", "inventory.json", "inventory.csv"])
def test_a_file_is_shown_then_applied_then_has_nothing_to_change(personas, name):
    client = personas.client("operator")
    text = (SAMPLES / name).read_text()
    answer = send(client, name, text)
    assert answer.status_code == 302
    html = client.get(answer.url).content.decode()
    assert "Apply these changes" in html
    assert "north/n1" in html
    assert not Node.objects.exists()
    assert client.post(answer.url).status_code == 302
    assert Node.objects.count() == 2
    assert AuditEntry.objects.get(action="inventory.import").actor == personas.users["operator"]
    again = send(client, name, text)
    assert again.status_code == 200
    assert "has nothing to change" in again.content.decode()
    applied = client.get(answer.url).content.decode()
    assert "Applied" in applied
    assert "Apply these changes" not in applied
    assert client.post(answer.url).status_code == 409


def test_pasted_text_needs_no_name(personas):
    client = personas.client("operator")
    answer = client.post(IMPORT, {"text": (SAMPLES / "inventory.json").read_text()})
    assert answer.status_code == 302
    assert InventoryImport.objects.get().form == "json"


def test_a_bad_file_is_answered_with_every_fault(personas):
    html = send(personas.client("operator"), "bad.csv", CSV).content.decode()
    assert "23 problems in bad.csv; nothing was changed" in html
    assert "there is no GPU 5; this node has 0 to 1" in html
    assert not InventoryImport.objects.exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "Choose a file, or paste its text."),
        ({"text": " \n"}, "Choose a file, or paste its text."),
        ({"text": "a", "file": SimpleUploadedFile("a.yaml", b"a")}, "not both"),
        ({"file": SimpleUploadedFile("a.yaml", b"\xff")}, "is not UTF-8"),
        ({"file": SimpleUploadedFile("a.yaml", b"<script>alert(1)</script>")}, "must be a map"),
    ],
)
def test_what_is_no_file_is_told_at_the_field(personas, fields, said):
    answer = personas.client("operator").post(IMPORT, fields)
    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert "<script>alert" not in answer.content.decode()


def test_a_preview_that_the_inventory_overtook_can_not_be_applied(personas):
    client = personas.client("operator")
    text = (SAMPLES / "inventory.yaml").read_text()
    first, second = send(client, "a.yaml", text).url, send(client, "a.yaml", text).url
    client.post(first)
    html = client.get(second).content.decode()
    assert "can&#x27;t be applied any more" in html or "can't be applied any more" in html
    assert "Apply these changes" not in html
    assert client.post(second).status_code == 409


def test_what_was_typed_is_escaped_in_the_preview(personas):
    client = personas.client("operator")
    text = "clusters: [{name: x, title: '<img src=x onerror=alert(1)>'}]\n"
    client.post(send(client, "a.yaml", text).url)
    changed = send(client, "a.yaml", text.replace("alert(1)", "alert(2)")).url
    html = client.get(changed).content.decode()
    assert "&lt;img src=x onerror=alert(2)&gt;" in html
    assert "<img" not in html


@pytest.mark.parametrize("address", [IMPORT, "/inventory/discover/"])
def test_only_operators_of_the_fleet_come_here(personas, address):
    assert personas.client("operator").get(address).status_code == 200
    assert personas.client("team_lead").get(address).status_code == 403
    assert personas.client("anonymous").get(address).status_code == 302
    assert personas.client("viewer").post(address, {}).status_code == 403


def test_discovery_without_a_driver_says_what_was_tried_and_what_helps(personas, monkeypatch):
    def nothing(*, virtual):
        raise NothingFound(["libnvidia-ml.so.1: NVML Shared Library Not Found (LibraryNotFound)"])

    monkeypatch.setattr("scheduler.services.hardware.discovery.machine_read", nothing)
    html = personas.client("operator").post("/inventory/discover/", {"cluster": ""}).content.decode()
    assert "No GPU could be read" in html
    assert "LibraryNotFound" in html
    assert "nvidia-smi" in html
    answer = personas.client("operator").post("/inventory/discover/", {"cluster": "a b"})
    assert answer.status_code == 422


def run(*arguments):
    out = StringIO()
    call_command("inventory", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_shows_then_applies(tmp_path):
    sample = str(SAMPLES / "inventory.yaml")
    shown = run("import", sample)
    assert "added    node north/n1 gpu type: – -> H100-SXM-80GB; gpus: – -> 8" in shown
    assert "Nothing was changed. Run it again with --apply" in shown
    assert not Node.objects.exists()
    assert "Applied." in run("import", sample, "--apply")
    assert Node.objects.count() == 2
    assert run("import", sample, "--apply") == "Nothing to change.\n"
    assert AuditEntry.objects.get(action="inventory.import").via == "command"


def test_the_command_refuses_with_places(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(YAML)
    with pytest.raises(CommandError, match=r"bad.yaml:1:9: format:[\s\S]*21 problems; nothing was changed") as caught:
        run("import", str(bad))
    assert caught.value.returncode == 2
    with pytest.raises(CommandError, match="No such file"):
        run("import", str(tmp_path / "none.yaml"))
    with pytest.raises(CommandError, match="state the format with --format"):
        run("import", str(tmp_path / "none.txt"))


def test_the_command_tells_when_there_is_no_driver(monkeypatch):
    def nothing(*, virtual):
        raise NothingFound(["libnvidia-ml.so.1: not found"])

    monkeypatch.setattr("gpufleet.core.management.commands.inventory.machine_read", nothing)
    with pytest.raises(CommandError, match=r"No GPU could be read.\n  tried: libnvidia-ml.so.1: not found") as caught:
        run("discover")
    assert caught.value.returncode == 3
