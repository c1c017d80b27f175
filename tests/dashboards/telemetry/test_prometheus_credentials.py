"""Prometheus servers that want a password, a token or a tenant: what is sent, where it is kept, and what is never told."""

import base64
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection

from dashboards.prometheus.collect import prometheus_collect
from dashboards.prometheus.credentials import secret_of
from dashboards.prometheus.models import PrometheusServer
from dashboards.prometheus.services import server_change, server_create
from gpufleet.core.models import AuditEntry
from gpufleet.core.templatetags.shell import path
from gpufleet.core.times import now
from tests.dashboards.prometheus_worlds import LOCAL, fleet, said
from tests.personas import Personas
from tests.prometheus import PASSWORD, USER, Exporter, Prometheus, gated, scraped

TOKEN = "glc_a-token.of-1"
SECRETS = (PASSWORD, TOKEN, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
FAR = "http://prometheus.example.org:9090"
SAFE = "https://prometheus.example.org"


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Exporter, Prometheus]]:
    with scraped(guarded=True) as both:
        yield both


@pytest.fixture(scope="module")
def open_one() -> Iterator[tuple[Exporter, Prometheus]]:
    with scraped() as both:
        yield both


@pytest.fixture(autouse=True)
def local(settings: Any) -> None:
    settings.WEBHOOKS = {"NETWORKS": LOCAL.networks, "HTTP": True}


def basic(**more: Any) -> dict[str, Any]:
    return {"name": "main", "url": SAFE, "enabled": True, "sign_in": "basic", "username": USER, "secret": PASSWORD} | more


def told(row: PrometheusServer, url: str, personas: Personas) -> list[str]:
    """All that anybody may read of a server: pages, API, audit log."""
    browser = personas.client("operator")
    pages = ["/telemetry/", f"/telemetry/{row.public_id}/", "/api/v1/telemetry/sources", "/audit/", "/api/v1/audit"]
    answers = [browser.get(page) for page in pages]
    assert {answer.status_code for answer in answers} == {200}
    texts = [answer.content.decode() for answer in answers]
    return [*texts, *(str(entry) for entry in AuditEntry.objects.values("before", "after", "reason", "action")), str(vars(row)), url]


@pytest.mark.django_db
def test_a_server_with_a_password_is_read_and_nobody_reads_the_password(guarded: tuple[Exporter, Prometheus], personas: Personas) -> None:
    exporter, server = guarded
    fleet(2)
    exporter.samples = [*said(0, sm="0.9"), *said(1, sm="0.1")]
    server.knows("DCGM_FI_PROF_SM_ACTIVE", 2)
    browser = personas.client("operator")
    form = {"name": "main", "url": server.url, "enabled": "on", "sign_in": "basic", "username": USER, "secret": "wrong"}
    assert browser.post("/telemetry/new/", form).status_code == 302
    row = PrometheusServer.objects.get()
    assert prometheus_collect(now=now()) == 0
    page = browser.post(f"/telemetry/{row.public_id}/test/", follow=True).content.decode()
    assert "401" in page and "not accepted" in page
    assert "401" in browser.get("/telemetry/").content.decode()

    row.refresh_from_db()
    changed = form | {"secret": PASSWORD, "revision": row.revision}
    assert browser.post(f"/telemetry/{row.public_id}/", changed).status_code == 302
    assert prometheus_collect(now=now()) == 2
    assert "has readings of 2 GPUs" in browser.post(f"/telemetry/{row.public_id}/test/", follow=True).content.decode()

    row.refresh_from_db()
    assert browser.post(f"/telemetry/{row.public_id}/", changed | {"name": "renamed", "secret": "", "revision": row.revision}).status_code == 302
    assert prometheus_collect(now=now()) == 2, "an empty field keeps what is stored"

    row.refresh_from_db()
    assert row.name == "renamed"
    for text in told(row, server.url, personas):
        assert not any(secret in text for secret in SECRETS)
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM prometheus_server")
        stored = str(cursor.fetchall())
    assert not any(secret in stored for secret in SECRETS)
    source = browser.get("/api/v1/telemetry/sources").json()["items"][0]
    assert {key: source[key] for key in ("sign_in", "username", "tenant")} == {"sign_in": "basic", "username": USER, "tenant": ""}
    entries = AuditEntry.objects.filter(action__in=("prometheus.create", "prometheus.change")).order_by("pk")
    made, changed_then, kept = (entry.after for entry in entries)
    assert made and changed_then and made["secret"] != changed_then["secret"]
    assert kept and set(kept) == {"name"}, "the log tells when the secret was changed, and when it was not"

    assert browser.post(f"/telemetry/{row.public_id}/remove/", {"reason": ""}).status_code == 302
    row.refresh_from_db()
    assert row.sealed == ""


@pytest.mark.django_db
@pytest.mark.parametrize(("refusal", "words"), [(401, "not accepted"), (403, "not allowed")])
def test_token_and_tenant_go_with_every_query_and_a_refusal_is_told_by_name(
    refusal: int, words: str, open_one: tuple[Exporter, Prometheus], personas: Personas
) -> None:
    """The gateway repeats in its refusals what it was sent."""
    exporter, server = open_one
    fleet(2)
    exporter.samples = [*said(0, sm="0.9"), *said(1, sm="0.1")]
    server.knows("DCGM_FI_PROF_SM_ACTIVE", 2)
    wanted = {"Authorization": f"Bearer {TOKEN}", "X-Scope-OrgID": "team-a|team-b", "THANOS-TENANT": "team-a|team-b"}
    operator = personas.access("operator")
    with gated(server.url, wanted, refusal=refusal) as gate:
        facts = {"name": "main", "url": gate.url, "enabled": True, "sign_in": "bearer", "secret": f" {TOKEN}\n", "tenant": "team-a|team-b"}
        row = server_create(access=operator, values=facts, now=now())
        assert prometheus_collect(now=now()) == 2
        assert len(gate.asked) > 20 and all(gate.asked)

        row = server_change(access=operator, server=row, values={"tenant": "team-c"}, revision=None, now=now())
        assert prometheus_collect(now=now()) == 0
        row.refresh_from_db()
        assert str(refusal) in row.fault and words in row.fault
        page = personas.client("operator").post(f"/telemetry/{row.public_id}/test/", follow=True).content.decode()
        assert str(refusal) in page and words in page
        for text in told(row, gate.url, personas):
            assert TOKEN not in text


@pytest.mark.django_db
def test_what_a_server_repeats_of_a_secret_in_another_answer_is_not_told(open_one: tuple[Exporter, Prometheus], personas: Personas) -> None:
    fleet(1)
    with gated(open_one[1].url, {"X-Never": "1"}, refusal=500) as gate:
        for number, facts in enumerate((basic(url=gate.url), basic(url=gate.url, sign_in="bearer", secret=TOKEN, name="other", username=""))):
            row = server_create(access=personas.access("operator"), values=facts, now=now())
            prometheus_collect(now=now())
            row.refresh_from_db()
            assert "500" in row.fault, number
            assert not any(secret in row.fault for secret in SECRETS)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"secret": ""}, "secret"),
        ({"username": ""}, "username"),
        ({"username": "a:b"}, "username"),
        ({"username": "a\r\nX-Other: 1"}, "username"),
        ({"secret": "a\0b"}, "secret"),
        ({"secret": "x" * 5000}, "secret"),
        ({"sign_in": "bearer", "secret": "two words"}, "secret"),
        ({"sign_in": "bearer", "secret": "a\r\nX-Other: 1"}, "secret"),
        ({"sign_in": "bearer", "secret": "schlüssel"}, "secret"),
        ({"sign_in": "digest"}, "sign_in"),
        ({"tenant": "a\nX-Other: 1"}, "tenant"),
        ({"tenant": "tenänt"}, "tenant"),
        ({"url": f"https://{USER}:{PASSWORD}@prometheus.example.org"}, "url"),
    ],
)
def test_what_no_header_can_carry_is_refused_without_repeating_it(values: dict[str, str], field: str, personas: Personas) -> None:
    with pytest.raises(ValidationError) as refused:
        server_create(access=personas.access("operator"), values=basic(**values), now=now())
    assert set(refused.value.message_dict) == {field}
    assert not any(secret in str(refused.value) for secret in SECRETS)
    assert not PrometheusServer.objects.exists()


@pytest.mark.django_db
def test_a_secret_is_kept_for_the_address_that_it_was_given_for(personas: Personas) -> None:
    """Otherwise somebody who may change the address could have it sent to a machine of his own."""
    operator = personas.access("operator")
    row = server_create(access=operator, values=basic(), now=now())

    def changed(**values: Any) -> PrometheusServer:
        return server_change(access=operator, server=row, values=values, revision=None, now=now())

    for url in ("https://other.example.org", f"{SAFE}:9090", "http://127.0.0.1"):
        with pytest.raises(ValidationError) as refused:
            changed(url=url, secret="")
        assert set(refused.value.message_dict) == {"secret"}
        assert "another address" in str(refused.value)
    assert secret_of(changed(url=f"{SAFE}/api/prom", secret="")) == PASSWORD
    with pytest.raises(ValidationError):
        changed(sign_in="bearer", username="", secret="")
    assert secret_of(changed(url="https://other.example.org", secret="new")) == "new"
    row = changed(sign_in="none", username="", secret="")
    assert (row.sealed, secret_of(row)) == ("", "")


@pytest.mark.django_db
@pytest.mark.parametrize(("url", "warned"), [(FAR, True), ("http://127.0.0.1:9090", False), ("http://localhost:9090", False), (SAFE, False)])
def test_a_secret_goes_over_http_only_after_a_warning(url: str, warned: bool, personas: Personas) -> None:
    browser = personas.client("operator")
    form = {"name": "main", "url": url, "enabled": "on", "sign_in": "basic", "username": USER, "secret": PASSWORD}
    answer = browser.post("/telemetry/new/", form)
    assert answer.status_code == (422 if warned else 302)
    if warned:
        page = answer.content.decode()
        assert "anybody on the way could read" in page and PASSWORD not in page
        assert not PrometheusServer.objects.exists()
        assert browser.post("/telemetry/new/", form | {"unencrypted": "on"}).status_code == 302
    page = browser.get("/telemetry/").content.decode()
    assert ("Unencrypted" in page) is warned
    assert f'<code class="breaks">{path(url)}</code>' in page, "a long address must leave room for the buttons"
    made = AuditEntry.objects.get(action="prometheus.create").after
    assert made and made["unencrypted"] is warned
    without = browser.post("/telemetry/new/", {"name": "open", "url": FAR, "enabled": "on", "sign_in": "none"})
    assert without.status_code == 302, "where there is no secret, there is no warning"


@pytest.mark.django_db
def test_where_http_is_not_allowed_nobody_is_asked_to_tick_a_box_that_is_not_there(personas: Personas, settings: Any) -> None:
    settings.WEBHOOKS = settings.WEBHOOKS | {"HTTP": False}
    form = {"name": "main", "url": FAR, "enabled": "on", "sign_in": "basic", "username": USER, "secret": PASSWORD}

    page = personas.client("operator").post("/telemetry/new/", form).content.decode()

    assert "Only https:// is allowed here" in page
    assert "tick this box" not in page


@pytest.mark.django_db
def test_a_secret_that_another_key_sealed_is_told_and_nothing_is_sent(
    open_one: tuple[Exporter, Prometheus], personas: Personas, settings: Any
) -> None:
    """Nor does the sealed secret of one server fit another one, should rows be copied."""
    fleet(1)
    with gated(open_one[1].url, {}) as gate:
        operator = personas.access("operator")
        row, other = (server_create(access=operator, values=basic(name=name, url=gate.url, secret=name), now=now()) for name in ("one", "two"))
        PrometheusServer.objects.filter(pk=other.pk).update(sealed=row.sealed)
        other.refresh_from_db()
        assert (secret_of(row), secret_of(other)) == ("one", None)
        settings.SECRET_KEY = "another-key" * 10
        prometheus_collect(now=now())
        row.refresh_from_db()
        assert "Enter it again" in row.fault and not gate.asked
        page = personas.client("operator").get(f"/telemetry/{row.public_id}/").content.decode()
        assert not re.search(r'<input type="password"[^>]*value=', page)
