"""Home: one page for each question that people open the console with. `/` shows the page of the reader's own role."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboards.home.order import USUAL, columns_of, home_arrange, moved, placed
from dashboards.home.parts import budgeted_now, call_home, idle_by_cause, month_answer, team_home
from dashboards.home.waits import long_waits
from dashboards.home.week import IdleOfMonth, idle_of_month
from dashboards.selectors import rates_visible
from dashboards.views import overview
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.templatetags.shell import money
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of, requires
from quotas.budgets import bullet
from quotas.chargeback.days import day_range, day_ranges, days_chart, report_chart
from quotas.chargeback.months import month_at
from quotas.chargeback.periods import Period
from quotas.chargeback.report import report, rows_shown
from quotas.selectors.budgets import budgets_listed, standings
from quotas.selectors.rates import price_book

NANOS_PER_MICRO = 1000
DEPARTMENTS_SHOWN, BUDGETS_SHOWN = 6, 5


@dataclass(frozen=True, slots=True)
class Tab:
    """One page of Home as its tabs show it."""

    key: str
    label: str
    url: str


def tabs_of(access: Access) -> list[Tab]:
    """The pages of Home that this person may open."""
    pages = [("overview", "Fleet", access.can_somewhere(Can.SEE))]
    pages.append(("home_on_call", "On call", access.can_everywhere(Can.OPERATE)))
    pages.append(("home_team", "Team", access.can_somewhere(Can.SUBMIT)))
    pages.append(("home_month", "Month", access.can_somewhere(Can.SEE_COSTS)))
    return [Tab(name, label, reverse(name)) for name, label, is_open in pages if is_open]


def own_page(access: Access) -> str:
    """Which page is a person's first: the fleet for those who run it, then the month of finance, then the team of those who submit."""
    if any(access.can_everywhere(one) for one in (Can.ADMINISTER, Can.OPERATE, Can.EDIT_QUOTA)):
        return "overview"
    if access.can_somewhere(Can.MANAGE_COSTS):
        return "home_month"
    return "home_team" if access.can_somewhere(Can.SUBMIT) else "overview"


@require_safe
@requires(Can.SEE)
def home(request: HttpRequest) -> HttpResponse:
    page: HttpResponse = PAGES[own_page(access_of(request))](request)
    return page


@require_safe
@requires(Can.SUBMIT)
def team(request: HttpRequest) -> HttpResponse:
    version, access = feed_revision(), access_of(request)
    found = team_home(access, now=now())
    context = {
        "home": found,
        "budgets": [(one, bullet(one)) for one in found.budgets],
        "spent_micros": None if found.spent_nanos is None else found.spent_nanos // NANOS_PER_MICRO,
        **_shared(request, "home_team", version),
    }
    return render(request, "dashboards/home/team.html", context)


@require_safe
@requires(Can.OPERATE, everywhere=True)
def on_call(request: HttpRequest) -> HttpResponse:
    version, access, moment = feed_revision(), access_of(request), now()
    context = {"home": call_home(access, now=moment), **waits_context(access, moment), **_shared(request, "home_on_call", version)}
    return render(request, "dashboards/home/on_call.html", context)


def waits_context(access: Access, moment: datetime) -> dict[str, Any]:
    return {"waits": long_waits(access, now=moment), "may_submit": access.can_somewhere(Can.SUBMIT)}


@require_safe
@requires(Can.SEE)
def waits(request: HttpRequest) -> HttpResponse:
    """The longest waits alone: what the page of the fleet asks for again when jobs change, as all of it would cost far more."""
    version, access = feed_revision(), access_of(request)
    answer = render(request, "dashboards/home/waits.html", {**waits_context(access, now()), "version": version})
    answer["Cache-Control"] = "no-store"
    return answer


@require_safe
@requires(Can.SEE_COSTS)
def month(request: HttpRequest) -> HttpResponse:
    version, access, moment = feed_revision(), access_of(request), now()
    found = report(access, Period.of(month_at(moment)), by="department", now=moment)
    rows = sorted(standings(budgets_listed(access), price_book(), moment), key=lambda one: (-one.percent, one.budget.public_id))
    ranges = day_ranges(found.period, moment)
    chosen = day_range(request.GET.get("range", ""), ranges)
    spent = money(found.total.effective_nanos // NANOS_PER_MICRO, 0)
    idle = _allocated_idle(access, moment)
    context: dict[str, Any] = {
        "report": found,
        "chart": report_chart(found) if chosen == ranges[-1] else days_chart(access, found.period, chosen, moment),
        "range": chosen,
        "ranges": ranges,
        "departments": budgeted_now(rows_shown(found.rows, found.total)[:DEPARTMENTS_SHOWN], rows),
        "causes": idle_by_cause(found.idle, allocated=idle.micros * NANOS_PER_MICRO),
        "few": {"idle": idle.few},
        "budgets": [(one, bullet(one)) for one in rows[:BUDGETS_SHOWN]],
        "may_budget": access.can_somewhere(Can.EDIT_QUOTA),
        "answer": month_answer(spent=spent, change_percent=found.change_percent, over=sum(one.state == "stopped" for one in rows)),
        **_shared(request, "home_month", version),
    }
    return render(request, "dashboards/home/month.html", context)


def _allocated_idle(access: Access, moment: datetime) -> IdleOfMonth:
    if not access.can_everywhere(Can.SEE_COSTS):
        return IdleOfMonth(0)
    return idle_of_month(rates=rates_visible(access, now=moment) or {}, now=moment)


def _shared(request: HttpRequest, page: str, version: int) -> dict[str, Any]:
    access = access_of(request)
    part, _, way = request.GET.get("moved", "").partition(":")
    return {
        "tabs": tabs_of(access),
        "here": page,
        "here_url": reverse(page),
        "version": version,
        "columns": placed(page, columns_of(access.actor.user, page)),
        "arranges": request.GET.get("arrange") == "1",
        "moved": part,
        "moved_way": way,
    }


@require_safe
@requires(Can.SEE)
def fleet(request: HttpRequest) -> HttpResponse:
    """The fleet with its gap."""
    frame = _shared(request, "overview", 0) | waits_context(access_of(request), now())
    del frame["version"]  # the overview reads its own before its rows
    return overview(request, **frame)


@require_POST
@requires(Can.SEE)
def order(request: HttpRequest) -> HttpResponse:
    """Keeps the order of a page: one move of a part, the usual order, or all columns as a script sends them after a drag."""
    access, page, move = access_of(request), request.POST.get("page", ""), request.POST.get("move", "")
    part = request.POST.get("part", "")
    try:
        if page not in USUAL:
            raise ValidationError({"page": "There is no such page of Home."})
        if move == "usual":
            home_arrange(access=access, page=page, columns=None)
        elif move:
            home_arrange(access=access, page=page, columns=moved(columns_of(access.actor.user, page), part, move))
        else:
            home_arrange(access=access, page=page, columns=[column.split() for column in request.POST.getlist("column")])
    except ValidationError as fault:
        return HttpResponse(" ".join(fault.messages), status=422, content_type="text/plain; charset=utf-8")
    if request.headers.get("X-Requested-With") == "fetch":
        return HttpResponse(status=204)
    return redirect(f"{reverse(page)}?{urlencode({'arrange': '1', 'moved': f'{part}:{move}'})}")


PAGES = {"overview": fleet, "home_team": team, "home_on_call": on_call, "home_month": month}
