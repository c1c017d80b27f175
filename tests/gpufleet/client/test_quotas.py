"""Changes of the quota tree from the command line."""

import pytest

from quotas.models import QuotaChange, QuotaShare
from tests.builders import node

pytestmark = pytest.mark.django_db(transaction=True)
ADMIN = {"who": "superuser", "scopes": ("admin",)}
H100 = "H100-SXM-80GB"


def test_a_guarantee_is_previewed_drafted_applied_listed_and_reverted(run, personas, tmp_path):
    node(gpus=8)
    share = QuotaShare.objects.create(node=personas.nodes["acme"], gpu_type=H100, guaranteed_milli=1_000)
    words = ("quota", "set", "acme", "--type", H100, "--guaranteed", "6")
    assert "1 → 6" in run(*words, "--dry-run", **ADMIN)[1]
    assert QuotaChange.objects.count() == 0
    status, out, _ = run(*words, "--reason", "Launch", **ADMIN)
    name = QuotaChange.objects.get().public_id
    assert status == 0 and out.startswith(f"{name}  Update acme: ")
    shown = run("quota", "change", name, **ADMIN)[1]
    assert f"acme: {H100}.guaranteed 1 → 6" in shown and "Next: apply" in shown
    assert "applied" in run("quota", "apply", name, **ADMIN)[1]
    share.refresh_from_db()
    assert share.guaranteed_milli == 6_000
    assert run("quota", "apply", name, **ADMIN)[0] != 0
    assert "Launch" not in run("quota", "changes", **ADMIN)[1] and name in run("quota", "changes", "--state", "applied", **ADMIN)[1]
    back = run("quota", "revert", name, **ADMIN)[1].split()[0]
    run("quota", "apply", back, **ADMIN)
    share.refresh_from_db()
    assert share.guaranteed_milli == 1_000

    path = tmp_path / "tree.yaml"
    path.write_text(run("quota", "export", **ADMIN)[1].replace("guaranteed: 1", "guaranteed: 2"))
    assert "guaranteed 1 → 2" in run("quota", "import", str(path), "--dry-run", **ADMIN)[1]
    assert "Draft qc-" in run("quota", "import", str(path), **ADMIN)[1]
    path.write_text("nodes: [{kind: x}]")
    status, _, wrong = run("quota", "import", str(path), **ADMIN)
    assert status != 0 and "Path is required" in wrong
