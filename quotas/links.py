"""Addresses that are handed to people, for pages and for the API."""

from django.http import HttpRequest
from django.urls import reverse

from gpufleet.core.models import User
from quotas.services.people import first_password_key


def password_link(request: HttpRequest, person: User) -> str:
    """Where the person sets a password, once. Whoever holds it holds the account, so it is shown once and never kept."""
    return request.build_absolute_uri(reverse("first_password", kwargs=first_password_key(person)))
