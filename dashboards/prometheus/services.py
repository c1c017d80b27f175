"""Prometheus servers as operators add, change, test and remove them."""

from collections.abc import Mapping
from copy import copy
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.db import transaction

from dashboards.prometheus.collect import Answer, answer_of, gpus_known
from dashboards.prometheus.credentials import credentials_take, facts_told, sealed
from dashboards.prometheus.models import PrometheusServer
from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Missing, Stale
from gpufleet.core.ids import public_id
from quotas.permissions import Access, Can
from scheduler.notify.outgoing import Refused, Rules, target_of

FIELDS = ("name", "url", "enabled", "for_services", "sign_in", "username", "tenant")
MOST_SERVERS = 50


def servers_listed(access: Access) -> list[PrometheusServer]:
    access.must_everywhere(Can.OPERATE)
    return list(PrometheusServer.objects.filter(removed_at__isnull=True).order_by("name", "pk"))


def server_for(access: Access, public_id: str) -> PrometheusServer:
    access.must_everywhere(Can.OPERATE)
    found = PrometheusServer.objects.filter(public_id=public_id, removed_at__isnull=True).first()
    if found is None:
        raise Missing(f"There is no Prometheus server {public_id}.")
    return found


def server_facts(row: PrometheusServer) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS}


def server_create(*, access: Access, values: Mapping[str, Any], reason: str = "", now: datetime) -> PrometheusServer:
    """The secret in `values` is kept sealed."""
    access.must_everywhere(Can.OPERATE)
    row = PrometheusServer(changed_at=now, changed_by=access.actor.name, **{name: values[name] for name in FIELDS if name in values})
    with transaction.atomic():
        secret = _must_be_sound(row, values, was=None)
        if PrometheusServer.objects.filter(removed_at__isnull=True).count() >= MOST_SERVERS:
            raise ValidationError({"name": f"There are {MOST_SERVERS} servers, which is the most."})
        row.public_id = public_id("ps")
        row.sealed = sealed(row, secret) if secret else ""
        row.save(force_insert=True)
        _record(access, "create", row, None, _facts(row), reason)
    return row


def server_change(
    *, access: Access, server: PrometheusServer, values: Mapping[str, Any], revision: int | None, reason: str = "", now: datetime
) -> PrometheusServer:
    """Change what is given. An empty secret keeps the stored one, where kind of sign-in and address stay."""
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        row = PrometheusServer.objects.select_for_update().get(pk=server.pk)
        if revision is not None and revision != row.revision:
            raise Stale("The server was changed meanwhile. Read it again, then decide.", row.revision)
        was, before = copy(row), _facts(row)
        for name in FIELDS:
            if name in values:
                setattr(row, name, values[name])
        secret = _must_be_sound(row, values, was=was)
        if secret is not None:
            row.sealed = sealed(row, secret) if secret else ""
        row.revision, row.changed_at, row.changed_by = row.revision + 1, now, access.actor.name
        row.save(update_fields=[*FIELDS, "sealed", "revision", "changed_at", "changed_by"])
        _record(access, "change", row, before, _facts(row), reason)
    return row


def server_remove(*, access: Access, server: PrometheusServer, reason: str = "", now: datetime) -> None:
    access.must_everywhere(Can.OPERATE)
    with transaction.atomic():
        row = PrometheusServer.objects.select_for_update().get(pk=server.pk)
        before = _facts(row)
        row.removed_at, row.enabled, row.sealed, row.revision = now, False, "", row.revision + 1
        row.save(update_fields=["removed_at", "enabled", "sealed", "revision"])
        _record(access, "remove", row, before, None, reason)


def server_test(*, access: Access, server: PrometheusServer, now: datetime) -> Answer:
    """Ask it once, and keep nothing of the answer."""
    access.must_everywhere(Can.OPERATE)
    answer = answer_of(server, gpus_known(), Rules.of_settings(), now)
    _record(access, "test", server, None, {"gpus": len(answer.look.gpus), "fault": answer.fault}, "")
    return answer


def _facts(row: PrometheusServer) -> dict[str, Any]:
    return server_facts(row) | facts_told(row)


def _must_be_sound(row: PrometheusServer, values: Mapping[str, Any], *, was: PrometheusServer | None) -> str | None:
    """The secret that is to be kept from now on; None: the stored one."""
    faults: dict[str, str] = {}
    row.name = row.name.strip()
    if not row.name or len(row.name) > 80 or not row.name.isprintable():
        faults["name"] = "Give it a name of at most 80 characters."
    elif PrometheusServer.objects.filter(name=row.name, removed_at__isnull=True).exclude(pk=row.pk).exists():
        faults["name"] = "Another server has this name."
    try:
        if target_of(row.url, Rules.of_settings()).path.count("?"):
            faults["url"] = "Leave out what is behind ?: queries are added to the address."
    except Refused as fault:
        faults["url"] = "Enter user name and password in their own fields." if "@" in urlsplit(row.url).netloc else str(fault)
    secret, wrong = credentials_take(row, values, was=was)
    if "url" in faults:
        wrong.pop("unencrypted", None)  # another address comes first
    if faults | wrong:
        raise ValidationError(faults | wrong)
    return secret


def _record(access: Access, what: str, row: PrometheusServer, before: Any, after: Any, reason: str) -> None:
    audit_record(
        actor=access.actor, action=f"prometheus.{what}", kind="prometheus_server", object_id=row.public_id, before=before, after=after, reason=reason
    )
