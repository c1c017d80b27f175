"""The page before something is taken away: a reason and the button beside what will happen. It needs no script."""

from collections.abc import Sequence

from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gpufleet.core.previews import Preview


def confirm(
    request: HttpRequest,
    form: Form,
    *,
    heading: str,
    send: str,
    effects: Sequence[str] | Preview,
    above: Sequence[tuple[str, str]],
    back: str,
    sub: str = "",
    leave: str = "Cancel",
    is_grave: bool = True,
) -> HttpResponse:
    """`above` are the steps of the crumbs; the button says `send`, and the way out, which says `leave`, leads to `back`.

    `effects` are sentences, or a preview that names jobs as well. A form without a reason asks for none.
    """
    asks = "reason" in form.fields
    context = {
        "form": form,
        "preview": effects if isinstance(effects, Preview) else Preview(sentences=effects),
        "reason": form["reason"].value() or "" if asks else "",
        "reason_optional": True,
        "reason_most": form.fields["reason"].max_length if asks else None,  # type: ignore[attr-defined]
        "reasonless": not asks,
        "faults": form.errors,
        "heading": heading,
        "send": send,
        "above": above,
        "back": back,
        "sub": sub,
        "leave": leave,
        "is_grave": is_grave,
    }
    return render(request, "quotas/confirm.html", context, status=422 if form.is_bound else 200)
