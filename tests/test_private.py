"""What lies on the disk signs nobody in and is for one user alone; a database or a cache that is away is told, and quickly."""

import gzip
import re
import shutil
import signal
import stat
import time
from pathlib import Path

import httpx
import pytest
import redis
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection
from django.test import Client

from gpufleet.core.cache import SharedCache
from gpufleet.core.private import folder_made_private, readable_by_others
from gpufleet.core.sessions import SessionStore, hashed
from tests.servers import Manage, Postgres, accepts, free_port


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.django_db
def test_the_table_of_sessions_signs_nobody_in(personas):
    browser = personas.client("viewer")
    key = browser.cookies["sessionid"].value
    (row,) = Session.objects.filter(session_key=hashed(key))

    thief = Client()
    thief.cookies["sessionid"] = row.session_key

    assert not Session.objects.filter(session_key=key).exists()
    assert browser.get("/").status_code == 200
    assert thief.get("/").status_code == 302


@pytest.mark.django_db
def test_a_session_is_kept_cycled_and_ended_under_its_hash():
    store = SessionStore()
    store["a"] = 1
    store.create()
    first = store.session_key
    store.cycle_key()

    assert SessionStore(store.session_key)["a"] == 1
    assert not SessionStore().exists(first)
    store.flush()
    assert not Session.objects.exists()
    assert SessionStore(first).load() == {}


def test_a_data_folder_becomes_private_and_links_are_left_alone(tmp_path):
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    folder.mkdir(mode=0o755)
    elsewhere.write_text("x")
    elsewhere.chmod(0o644)
    for name in ("gpufleet.sqlite3", "gpufleet.sqlite3-wal", "secret_key"):
        (folder / name).write_text("x")
        (folder / name).chmod(0o644)
    (folder / "link.sqlite3").symlink_to(elsewhere)
    before = [path.name for path, _ in readable_by_others(folder)]

    folder_made_private(folder)

    assert before == ["data", "gpufleet.sqlite3", "gpufleet.sqlite3-wal", "link.sqlite3", "secret_key"]
    assert mode(folder) == 0o700
    assert {mode(folder / name) for name in ("gpufleet.sqlite3", "gpufleet.sqlite3-wal", "secret_key")} == {0o600}
    assert mode(elsewhere) == 0o644


def test_a_console_and_its_backup_are_private_and_doctor_says_what_is_not(prepared, tmp_path):
    manage = prepared.migrated(tmp_path / "data")
    (tmp_path / "data").chmod(0o755)
    loose = manage.run("doctor", check=False).stdout
    port = free_port()
    console = manage.start("manage.py", "up", "--port", str(port), name="up")
    console.wait_for(lambda: "answers at" in console.output(), seconds=180, what="the console to answer")
    manage.run("backup", str(tmp_path / "copy"))
    console.stop()

    assert "0755" in loose
    assert f"chmod 700 {manage.data}" in loose
    for folder in (tmp_path / "data", tmp_path / "copy"):
        assert mode(folder) == 0o700
        assert [path for path, _ in readable_by_others(folder)] == []


def test_an_empty_key_is_told_in_one_sentence(tmp_path):
    (tmp_path / "secret_key").write_text("")

    told = Manage(tmp_path).run("up", "--port", str(free_port()), check=False, seconds=60)

    assert told.returncode == 2
    assert "secret_key does not hold a key" in told.stderr
    assert "Traceback" not in told.stderr


def test_a_truncated_database_is_told_in_one_sentence(prepared, tmp_path):
    manage = prepared.migrated(tmp_path / "data")
    database = manage.data / "gpufleet.sqlite3"
    database.write_bytes(database.read_bytes()[:5000])

    told = manage.run("up", "--port", str(free_port()), check=False, seconds=60)

    assert told.returncode == 1
    assert "cannot be used" in told.stderr
    assert "Restore it from a backup" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.fixture
def no_database(monkeypatch):
    """Every statement fails as it does while PostgreSQL is away."""

    def away(*_, **__):
        raise OperationalError("connection refused")

    return lambda: monkeypatch.setattr(connection, "cursor", away)


@pytest.mark.django_db
def test_a_database_that_is_away_is_a_503_with_a_time_to_try_again(personas, no_database):
    client = personas.client("operator")
    client.raise_request_exception = False
    no_database()

    api, page = client.get("/api/v1/jobs"), client.get("/jobs/")

    assert api.status_code == page.status_code == 503
    assert api["Retry-After"] == page["Retry-After"] == "5"
    assert api["Content-Type"] == "application/problem+json"
    assert api.json()["title"] == "The database does not answer"
    assert "The database does not answer" in page.content.decode()


def test_without_redis_the_cache_counts_in_this_process():
    """A real client, and a port on which nobody listens."""
    cache = SharedCache(f"redis://127.0.0.1:{free_port()}", {"OPTIONS": {"socket_connect_timeout": 1}})
    cache.here.clear()

    assert cache.add("tries", 1) is True
    assert cache.incr("tries") == 2
    assert cache.get("tries") == 2
    assert cache.get("none", "-") == "-"
    cache.set("list", [1, 2])
    cache.delete("list")
    assert cache.get_many(["tries", "list"]) == {"tries": 2}


def test_with_redis_values_are_json_and_never_unpickled(redis_server):
    url = redis_server.url()
    cache = SharedCache(url, {"OPTIONS": {"serializer": "gpufleet.core.cache.JsonSerializer"}})
    cache.set("k", [1.5, "a", None, True])

    assert cache.get("k") == [1.5, "a", None, True]
    stored = redis.Redis.from_url(url).get(cache.make_and_validate_key("k"))
    assert stored == b'[1.5, "a", null, true]'
    cache.set("n", 1)
    assert cache.incr("n") == 2


@pytest.mark.django_db
def test_healthz_says_that_the_database_is_away_or_the_disk_full(client, monkeypatch, no_database):
    well = client.get("/healthz")
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    full = client.get("/healthz")
    no_database()
    away = client.get("/healthz")

    assert well.status_code == 200
    if connection.vendor == "sqlite":
        assert (full.status_code, full.json()["findings"]) == (503, ["The disk of the data folder is full."])
    assert (away.status_code, away.json()["findings"]) == (503, ["The database does not answer."])
    assert away["Retry-After"] == "5"


def test_a_console_whose_postgres_ends_says_503_within_two_seconds(postgres, prepared, tmp_path):
    """The real thing: uvicorn over a PostgreSQL of its own, which is ended. `postgres` skips this where there is none."""
    own = Postgres()
    try:
        manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=prepared.migrated_in(own))
        port = free_port()
        web = manage.start("-m", "uvicorn", "gpufleet.asgi:application", "--port", str(port), "--lifespan", "off", name="web")
        web.wait_for(lambda: accepts(port), seconds=90, what="the web server to listen")
        base = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=base, timeout=20) as client:
            assert client.get("/healthz").status_code == 200
            own.program.stop(signal.SIGINT)
            begun = time.monotonic()
            away = client.get("/healthz")
            took = time.monotonic() - begun
            asked = client.get("/api/v1/jobs", headers={"Authorization": "Bearer none"})
        web.stop()
    finally:
        own.stop()

    assert away.status_code == 503
    assert took < 2.5
    assert asked.status_code == 503
    assert asked.headers["Retry-After"] == "5"


@pytest.mark.django_db
def test_what_was_answered_outlives_a_power_cut():
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL has its own setting, synchronous_commit.")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous")
        assert cursor.fetchone() == (2,)  # FULL


@pytest.mark.django_db
def test_a_page_is_packed_and_what_is_packed_elsewhere_is_left_alone(personas):
    client = personas.client("operator")
    plain, packed = client.get("/jobs/"), client.get("/jobs/", headers={"Accept-Encoding": "gzip"})
    api = client.get("/api/v1/jobs", headers={"Accept-Encoding": "gzip"})

    assert packed["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed["Vary"]
    assert len(packed.content) < len(plain.content) / 3
    assert b"<html" in gzip.decompress(packed.content)
    assert "Content-Encoding" not in plain.headers
    assert "Content-Encoding" not in api.headers


@pytest.mark.django_db
def test_the_token_of_a_form_differs_in_every_answer(personas):
    """So lengths of packed pages tell nothing of it."""
    client = personas.client("operator")
    tokens = {re.search(r'csrfmiddlewaretoken" value="([^"]+)"', client.get("/jobs/new/").content.decode())[1] for _ in range(3)}

    assert len(tokens) == 3
