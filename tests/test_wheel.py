"""A wheel is a whole console: installed into an empty environment, away from the clone, it starts and serves its pages and static files."""

import re
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from tests.servers import PROJECT, Program, free_port

PARTS = ("gpufleet", "scheduler", "quotas", "dashboards", "templates", "static", "pyproject.toml", "setup.py", "README.md", "LICENSE", "manage.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that no build folder of an earlier version gets into it."""
    tree = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        source = PROJECT / part
        if source.is_dir():
            shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / part)
    code = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True)
    (built,) = (tree / "dist").glob("*.whl")
    return built


def test_it_holds_every_module_template_and_static_file(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = [
        path for app in ("gpufleet", "scheduler", "quotas", "dashboards") for path in (PROJECT / app).rglob("*") if path.suffix in {".py", ".yaml"}
    ]
    site = [path for folder in ("templates", "static") for path in (PROJECT / folder).rglob("*") if path.is_file()]

    wanted = {str(path.relative_to(PROJECT)) for path in ours} | {f"gpufleet/site/{path.relative_to(PROJECT)}" for path in site}
    assert wanted - names == set()


def test_an_installed_console_starts_and_serves_its_pages(wheel, tmp_path):
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    subprocess.run([home / "bin/pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True, capture_output=True)
    port = free_port()
    # What gpufleet depends on comes from the environment of the tests; a path on PYTHONPATH carries no editable install with it.
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": sysconfig.get_path("purelib"), "HOME": str(tmp_path)}
    console = Program(
        [str(home / "bin/gpufleet"), "up", "--port", str(port), "--data-dir", str(tmp_path / "data"), "--demo", "none"],
        env=env,
        log=tmp_path / "log",
        cwd=tmp_path,
    )
    try:
        console.wait_for(lambda: "answers at" in console.output(), seconds=180, what="the installed console to answer")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/accounts/login/", timeout=10) as response:
            page = response.read().decode()
        sheets = re.findall(r'href="(/static/[^"]+\.css)"', page)
        for sheet in sheets:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{sheet}", timeout=10) as response:
                assert response.status == 200
    finally:
        console.stop()

    assert "<form" in page
    assert sheets != []
