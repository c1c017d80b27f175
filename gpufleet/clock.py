"""The UTC switch of the shell: whether this person reads times in UTC or in the browser's zone."""

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from gpufleet.web import access_of, requires
from quotas.services.people import person_set_clock


@require_POST
@requires()
def clock_set(request: HttpRequest) -> HttpResponse:
    """Keeps the choice on the person. A script gets an empty answer; a plain form is led back to the page it was sent from."""
    access = access_of(request)
    assert access.actor.user is not None
    person_set_clock(access=access, person=access.actor.user, clock_utc=request.POST.get("utc") == "1")
    if request.headers.get("X-Requested-With") == "fetch":
        return HttpResponse(status=204)
    back = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    return HttpResponseRedirect(back if safe else "/")
