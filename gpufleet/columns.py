"""Which columns a list shows: each browser keeps a choice of its own for each list."""

import re
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from gpufleet.core.tables import COLUMNS_COOKIE, FIRST_ALONE
from gpufleet.web import requires

KEPT = timedelta(days=365)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
MOST = 60


@require_POST
@requires()
def columns_set(request: HttpRequest) -> HttpResponse:
    """Keeps the choice and leads back to the list. `reset` goes back to the columns that the list has by itself."""
    table, chosen = request.POST.get("table", ""), request.POST.getlist("column")[:MOST]
    if not all(map(_NAME.fullmatch, [table, *chosen])):
        raise ValidationError({"column": ["A column has a name of lower-case letters, digits, - and _."]})
    back = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    answer = HttpResponseRedirect(back if safe else "/")
    name = f"{COLUMNS_COOKIE}{table}"
    if "reset" in request.POST:
        answer.delete_cookie(name, samesite="Lax")
    else:
        kept = ".".join(chosen) or FIRST_ALONE
        answer.set_cookie(name, kept, max_age=KEPT, secure=request.is_secure(), httponly=True, samesite="Lax")
    return answer
