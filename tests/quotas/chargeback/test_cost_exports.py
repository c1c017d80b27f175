"""Files that a worker writes: private, signed, expiring, for who asked alone, and the same as those that are streamed."""

import stat
from datetime import timedelta
from urllib.parse import urlencode

import pytest

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.chargeback.files import file_of
from quotas.chargeback.months import month_refresh
from quotas.chargeback.periods import Period
from quotas.models import CostExport, ExportState, RoleBinding
from quotas.services.cost_exports import LOST_AFTER, MOST_AT_ONCE, export_write, exports_folder, exports_sweep, path_of
from tests.personas import Personas
from tests.quotas.chargeback.test_exports import month  # noqa: F401 (a fixture)
from tests.quotas.chargeback.test_months import LATER, OCTOBER

pytestmark = pytest.mark.django_db


@pytest.fixture
def asked(month: Personas, settings, tmp_path, monkeypatch, django_capture_on_commit_callbacks):  # noqa: F811
    """Returns an export that somebody asked for over the API; the worker's turn is the caller's."""
    settings.DATA_DIR = tmp_path
    month_refresh(first=OCTOBER, now=LATER)
    queued = []
    monkeypatch.setattr("quotas.tasks.cost_export_write.delay", queued.append)

    def ask(who: str = "finance", **wanted) -> CostExport:
        with django_capture_on_commit_callbacks(execute=True):
            answer = month.client(who).post("/api/v1/costs/2026-10/exports", wanted, content_type="application/json")
        assert answer.status_code == 202, answer.content
        assert answer["Location"] == f"/api/v1/cost-exports/{answer.json()['id']}"
        export = CostExport.objects.get(public_id=answer.json()["id"])
        assert (answer.json()["state"], answer.json()["file"], queued[-1]) == ("waiting", None, export.pk)
        return export

    return ask


def written(export: CostExport) -> CostExport:
    assert export_write(key=export.pk, clock=now) == ExportState.DONE
    export.refresh_from_db()
    return export


@pytest.mark.parametrize("kind", ["csv", "focus-1.4", "xlsx", "pdf", "summary"])
def test_a_file_is_private_and_the_same_as_the_streamed_one(month, asked, kind) -> None:  # noqa: F811
    export = written(asked(format=kind))
    path = path_of(export)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    answer = month.client("finance").get(f"/api/v1/cost-exports/{export.public_id}").json()
    assert (answer["state"], answer["size"], answer["lines"], answer["of_lines"]) == ("done", path.stat().st_size, 6, 6)
    over_http = month.client("finance").get(answer["file"])
    assert over_http.status_code == 200 and b"".join(over_http.streaming_content) == path.read_bytes()
    if kind not in ("xlsx", "pdf"):  # which hold the time when they were written
        assert path.read_bytes() == b"".join(file_of(month.access("finance"), Period.of(OCTOBER), kind, now=LATER).pieces)
    actions = list(AuditEntry.objects.filter(object_id=export.public_id).order_by("pk").values_list("action", flat=True))
    assert actions == ["cost_export.ask", "export"]
    page = month.client("finance").get("/cost/exports/").content.decode()
    assert "Ready" in page and f"/cost/exports/{export.public_id}/file/?key=" in page


def test_a_link_is_for_who_asked_as_long_as_the_rights_hold(month, asked) -> None:  # noqa: F811
    lead = written(asked("team_lead", format="csv"))
    link = month.client("team_lead").get(f"/api/v1/cost-exports/{lead.public_id}").json()["file"]
    page = f"/cost/exports/{lead.public_id}/file/?{link.partition('?')[2]}"

    text = b"".join(month.client("team_lead").get(page).streaming_content).decode()
    assert "acme/research/nlp" in text and "acme/product" not in text
    assert month.client("finance").get(page).status_code == month.client("superuser").get(page).status_code == 404
    assert month.client("viewer").get(page).status_code == 403
    assert month.client("team_lead").get(page[:-1] + ("A" if page[-1] != "A" else "B")).status_code == 404
    assert month.client("team_lead").get(page.partition("?")[0]).status_code == 404
    # Lead of another team alone by now: the file holds what can no longer be seen.
    RoleBinding.objects.filter(user__username="team_lead").update(node=month.nodes["acme/product/search"])
    answer = month.client("team_lead").get(link)
    assert answer.status_code == month.client("team_lead").get(page).status_code == 403
    assert "can no longer see" in answer.json()["detail"]


def test_a_file_expires_and_is_swept(month, asked, settings) -> None:  # noqa: F811
    settings.EXPORT_HOURS = 2
    export, kept = written(asked(format="csv")), written(asked(format="csv"))
    link = month.client("finance").get(f"/api/v1/cost-exports/{export.public_id}").json()["file"]
    stray = exports_folder() / "ce-0"
    stray.write_text("of no export")
    CostExport.objects.filter(pk=export.pk).update(expires_at=now())

    assert exports_sweep(now=now() + timedelta(hours=1)) == 2
    assert [path.name for path in exports_folder().iterdir()] == [kept.public_id]
    gone = month.client("finance").get(link)
    assert gone.status_code == 404 and "has expired" in gone.json()["detail"]
    assert exports_sweep(now=now() + timedelta(hours=3)) == 1


def test_progress_is_told_and_what_is_lost_or_fails_says_so(month, asked, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr("quotas.services.cost_exports.TOLD_EVERY", 0)
    export = written(asked(format="csv"))
    assert (export.lines, export.of_lines) == (6, 6)
    assert export_write(key=export.pk, clock=now) is None, "it is written once"

    failing = asked(format="csv")
    (exports_folder() / f"{failing.public_id}.part").mkdir()
    with pytest.raises(OSError):
        export_write(key=failing.pk, clock=now)
    failing.refresh_from_db()
    assert failing.state == ExportState.FAILED and failing.fault
    (exports_folder() / f"{failing.public_id}.part").rmdir()

    lost = asked(format="csv")
    exports_sweep(now=now() + LOST_AFTER + timedelta(seconds=1))
    lost.refresh_from_db()
    assert lost.state == ExportState.FAILED and "10 minutes" in lost.fault
    for _ in range(MOST_AT_ONCE):
        asked(format="csv")
    answer = month.client("finance").post("/api/v1/costs/2026-10/exports", {"format": "csv"}, content_type="application/json")
    assert answer.status_code == 409


def test_an_estimate_that_is_rated_anew_meanwhile_is_written_again(month, asked, monkeypatch) -> None:  # noqa: F811
    export, looks = asked(format="csv"), iter([1, 2, 2, 2])
    monkeypatch.setattr("quotas.services.cost_exports._rated_to", lambda first: next(looks))

    written(export)
    assert list(looks) == [], "written twice: before and after, then again"


def test_large_months_are_exported_in_the_background(month, asked, monkeypatch) -> None:  # noqa: F811
    direct = month.client("finance").get("/cost/?month=2026-10").content.decode()
    assert "format=xlsx" in direct
    monkeypatch.setattr("quotas.views.costs.DIRECT_LINES", 3)
    page = month.client("finance").get("/cost/?month=2026-10").content.decode()
    assert "format=xlsx" not in page and 'value="xlsx"' in page and "format=summary" in page
    assert month.client("finance").post("/cost/exports/", {"month": "2026-10", "format": "xlsx"}).status_code == 302
    assert CostExport.objects.get().format == "xlsx"
    assert (
        month.client("finance")
        .post("/cost/exports/", urlencode({"month": "2026-10", "format": "ods"}), content_type="application/x-www-form-urlencoded")
        .status_code
        == 404
    )
