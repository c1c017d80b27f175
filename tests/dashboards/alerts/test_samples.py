"""The files for Prometheus and Grafana name figures that there are."""

import json
import re
import shutil
import subprocess

import pytest

from dashboards.alerts.figures import FIGURES
from tests.servers import PROJECT

SAMPLES = PROJECT / "docs/operate/samples"


def test_promtool_takes_the_rules():
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed (Debian package prometheus).")
    done = subprocess.run(["promtool", "check", "rules", SAMPLES / "gpufleet-alerts.yml"], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["gpufleet-alerts.yml", "gpufleet-dashboard.json"])
def test_every_figure_that_is_asked_for_is_told(name):
    text = (SAMPLES / name).read_text().replace("\\", "")
    named = set(re.findall(r'gpufleet_figure\{figure="(\w+)"', text))

    assert named and named <= set(FIGURES)


def test_the_dashboard_is_whole():
    told = json.loads((SAMPLES / "gpufleet-dashboard.json").read_text())
    ids = [panel["id"] for panel in told["panels"]]

    assert len(ids) == len(set(ids))
    assert all(panel["targets"][0]["expr"] for panel in told["panels"])
