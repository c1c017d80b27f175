"""Changes of the quota tree from the command line."""

import pytest

from gpufleet.core.times import now
from quotas.models import QuotaChange, QuotaNode, QuotaShare
from scheduler.loop.policy import policy
from scheduler.models import LearnedOverrun
from scheduler.snapshots import Snapshots
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


def test_minimum_run_times_and_fleet_wide_rules_reach_the_scheduler(run, personas):
    node(gpus=8)
    team = personas.nodes["acme/research/nlp"]

    def change(*words: str) -> None:
        run("quota", "apply", run("quota", "set", *words, **ADMIN)[1].split()[0], **ADMIN)

    change(team.path, "--preempt-min-runtime", "10m", "--reclaim-min-runtime", "90s", "--default-class", "interactive")
    rules = ("worth_batch_gpu_s=500", "max_wait_batch_s=3600", "sharing_trust=job", "half_life_s=7200", "estimates=stated", "relief=evict")
    change("acme", *(word for rule in rules for word in ("--rule", rule)))
    chosen = policy()
    LearnedOverrun.objects.create(learnt_at=now(), factor_millionths=1_500_000, jobs=90)
    scenario = Snapshots().take(settings=chosen.engine, now=now(), start_timeout=chosen.start_timeout).scenario
    settings, (found,) = scenario.settings, (one for one in scenario.quotas if one.name == team.path)
    team.refresh_from_db()

    assert (found.preempt_min_runtime_ms, found.reclaim_min_runtime_ms, team.default_class) == (600_000, 90_000, "interactive")
    assert (settings.worth_gpu_ms.batch, settings.max_wait_ms.batch) == (500_000, 3_600_000)
    assert (settings.sharing_trust, settings.fairness.half_life_ms) == ("job", 7_200_000)
    assert settings.overrun_millionths == 1_000_000
    change("acme", "--rule", "worth_batch_gpu_s=", "--rule", "sharing_trust=", "--rule", "estimates=", "--rule", "relief=")
    change(team.path, "--preempt-min-runtime", "inherit", "--default-class", "inherit")
    top = QuotaNode.objects.get(path="acme")
    team.refresh_from_db()
    assert top.policy == {"max_wait_batch_s": 3600, "half_life_s": 7200}
    assert (team.preempt_min_runtime_s, team.reclaim_min_runtime_s, team.default_class) == (None, 90, "")
    status, _, wrong = run("quota", "set", "acme", "--rule", "worth_batch_gpu_s=much", **ADMIN)
    assert status != 0 and "It must be a whole number" in wrong
    assert run("quota", "set", team.path, "--rule", "half_life_s=60", **ADMIN)[0] != 0
