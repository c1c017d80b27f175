"""The container and compose files, as far as they can be held without a container engine."""

import os
import re
import shutil
import subprocess

import pytest
import redis
import yaml

from gpufleet.environment import VARIABLES
from tests.servers import PROJECT, Program, accepts, free_port

COMPOSE = yaml.safe_load((PROJECT / "compose.yaml").read_text())
CONTAINERFILE = (PROJECT / "Containerfile").read_text()
OURS = ("migrate", "web", "worker", "scheduler", "beat")
KNOWN = {variable.name for variable in VARIABLES}


def test_there_is_one_service_for_each_kind_of_process():
    assert set(COMPOSE["services"]) == {"postgres", "redis", *OURS}


@pytest.mark.parametrize("name", OURS)
def test_our_services_have_all_settings_and_no_others(name):
    given = COMPOSE["services"][name]["environment"]
    needed = {variable.name for variable in VARIABLES if variable.production is None}

    assert set(given) <= KNOWN
    assert needed <= set(given)


def test_images_are_named_by_the_digest_that_their_tag_has_now(tmp_path):
    """Twice, as a tag moves on. The registry is played: nothing here may be fetched."""
    for name in (".ci/pin_images", "compose.yaml", "Containerfile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    registry = tmp_path / "skopeo"
    for digit in "12":
        registry.write_text(f"#!/bin/sh\necho sha256:{digit * 64}\n")
        registry.chmod(0o755)
        subprocess.run([tmp_path / ".ci/pin_images"], check=True, capture_output=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})

        compose, container = ((tmp_path / name).read_text() for name in ("compose.yaml", "Containerfile"))
        assert f"image: docker.io/library/redis:7@sha256:{digit * 64}\n" in compose
        assert f"image: docker.io/library/postgres:15@sha256:{digit * 64}\n" in compose
        assert re.findall(r"^FROM (\S+)", container, re.MULTILINE) == [f"docker.io/library/python:3.12-slim-bookworm@sha256:{digit * 64}"] * 2


def test_no_secret_is_written_down():
    """Secrets come in from outside, and compose refuses to start without them."""
    text = (PROJECT / "compose.yaml").read_text()

    for name in ("GPUFLEET_SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD"):
        assert f"${{{name}:?" in text
    assert not re.search(r"(?i)(secret|password)\w*[:=]\s*[\"']?[a-z0-9]{8,}", text.replace("${", "$ {"))


@pytest.mark.parametrize("name", OURS)
def test_our_services_run_without_privileges(name):
    service = COMPOSE["services"][name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    assert "no-new-privileges:true" in service["security_opt"]


def test_what_serves_is_watched_and_starts_in_order():
    services = COMPOSE["services"]

    assert all("healthcheck" in services[name] for name in services if name != "migrate")
    for name in ("web", "worker", "scheduler", "beat"):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_only_the_web_port_is_published_and_only_to_this_machine():
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}

    assert published == {"web": ["127.0.0.1:8000:8000"]}


def test_the_image_holds_what_the_program_needs_and_runs_as_nobody_special():
    copied = set(re.findall(r"^COPY (\S+) \1$", CONTAINERFILE, re.MULTILINE))

    assert copied == {"gpufleet", "scheduler", "quotas", "dashboards", "templates", "static"}
    assert "--require-hashes" in CONTAINERFILE
    assert CONTAINERFILE.index("USER gpufleet") < CONTAINERFILE.index("CMD ")
    assert not re.search(r"^(ENV|ARG) .*(SECRET|PASSWORD)", CONTAINERFILE, re.MULTILINE)


def test_what_the_image_sets_are_settings():
    assert set(re.findall(r"(GPUFLEET_\w+)=", CONTAINERFILE)) <= KNOWN


def test_the_build_sees_what_it_copies():
    """`.containerignore` lets through by name, so a new folder must be named in both."""
    let_through = {line[1:] for line in (PROJECT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE) for word in line.split()}

    assert copied <= let_through
    assert all((PROJECT / name).exists() for name in copied)


@pytest.mark.redis
def test_redis_as_composed_answers_nobody_without_its_password(tmp_path, redis_server):
    """The command of compose.yaml under a real Redis, on a port of the test's own."""
    shell, flag, command = COMPOSE["services"]["redis"]["command"]
    port = free_port()
    env = {"PATH": os.environ["PATH"], "REDIS_PASSWORD": "only-for-tests"}
    command = command.replace("$$", "$").replace("redis-server -", f"redis-server - --port {port} --bind 127.0.0.1", 1)
    program = Program([shell, flag, command], log=tmp_path / "redis.log", env=env, cwd=tmp_path)
    try:
        program.wait_for(lambda: accepts(port), what="Redis to answer")
        with pytest.raises(redis.AuthenticationError), redis.Redis(port=port) as nobody:
            nobody.ping()
        with redis.Redis(port=port, password="only-for-tests") as ours:
            assert ours.ping()
    finally:
        program.stop()
    assert not accepts(port), "what is told to stop is Redis, not a shell before it"
