"""The page before something is taken away: what will happen, a reason, and the button. It needs no script."""

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from quotas.forms import ReasonForm


def confirm(
    request: HttpRequest,
    form: ReasonForm,
    *,
    heading: str,
    send: str,
    effects: Sequence[str],
    above: Sequence[tuple[str, str]],
    back: str,
    sub: str = "",
    leave: str = "Cancel",
) -> HttpResponse:
    """`above` are the steps of the crumbs; the button says `send`, and the way out, which says `leave`, leads to `back`."""
    context = {"form": form, "heading": heading, "send": send, "effects": effects, "above": above, "back": back, "sub": sub, "leave": leave}
    return render(request, "quotas/confirm.html", context, status=422 if form.is_bound else 200)
