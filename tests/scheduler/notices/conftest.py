import ipaddress
from collections.abc import Iterator

import pytest

from tests.receiver import LOOPBACK, Receiver, receiving


@pytest.fixture
def loopback_allowed(settings) -> None:
    settings.WEBHOOKS = {"NETWORKS": (ipaddress.ip_network(LOOPBACK),), "HTTP": True, "GIVE_UP_DAYS": 5}


@pytest.fixture
def receiver(loopback_allowed) -> Iterator[Receiver]:
    with receiving() as found:
        yield found
