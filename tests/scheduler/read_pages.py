"""Pages of jobs as text."""

from django.urls import reverse


def text(client, address, status=200):
    answer = client.get(address)
    assert answer.status_code == status, address
    return answer.content.decode()


def page(client, of):
    return text(client, reverse("job", args=[of.public_id]))
