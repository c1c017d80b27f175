"""Notices by e-mail as a real server receives them: over SMTP, signed in, once each, also where the server has its troubles."""

import email
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.policy import default as modern
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from scheduler.models import JobState, Sending, SendingState
from scheduler.services.notify.delivering import GIVE_UP
from scheduler.services.notify.notices import TEST_TITLE, Kind, notice_test, notices_choose, notices_read
from scheduler.services.notify.outbox import outbox_turn
from scheduler.services.notify.sending import sendings_turn
from tests.builders import NOON
from tests.personas import Personas

from .test_notices import TEAM, end, running

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS:UserWarning"),  # on this machine nobody listens
]
SOON = NOON + timedelta(minutes=1)  # what comes together goes together
USER, PASSWORD = "console", "p@ss w%rd:/"


class Box:
    """What a server has taken, and what it says to the next recipients and messages before it takes any."""

    def __init__(self) -> None:
        self.taken: list[EmailMessage] = []
        self.refused: list[str] = []  # to recipients
        self.broken: list[str] = []  # to what was sent
        self.logins: list[str] = []

    async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]) -> str:
        if self.refused:
            return self.refused.pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.broken:
            answer = self.broken.pop(0)
            if not answer:
                server.transport.abort()
            return answer or "250 OK"
        assert isinstance(envelope.content, bytes)
        message = email.message_from_bytes(envelope.content, policy=modern)
        assert isinstance(message, EmailMessage)
        self.taken.append(message)
        return "250 OK"

    def signed_in(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, facts: Any) -> AuthResult:
        self.logins.append(facts.login.decode())
        return AuthResult(success=(facts.login, facts.password) == (USER.encode(), PASSWORD.encode()), handled=False)


class OnAFreePort(Controller):
    """It asks itself for a first greeting at its port, which is known once it listens."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@pytest.fixture
def box(settings: Any) -> Iterator[Box]:
    """A server on this machine that takes mail of whoever signs in, and the console that uses it."""
    found = Box()
    controller = OnAFreePort(found, hostname="127.0.0.1", port=0, authenticator=found.signed_in, auth_required=True, auth_require_tls=False)
    controller.start()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", controller.port
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = USER, PASSWORD
    settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
    yield found
    controller.stop()


@pytest.fixture
def failed(personas: Personas) -> None:
    """A job of somebody who is told by e-mail has failed."""
    user = personas.users["submitter"]
    user.email = "sam@example.org"
    user.save()
    notices_choose(access=personas.access("submitter"), ways={kind.value: ["email"] for kind in Kind})
    end(running(user, personas.nodes[TEAM]), cause="Exit code 1 – out of memory, say the ranks.")


def send(at: datetime) -> Sending:
    sendings_turn(clock=lambda: at, rng=random.Random(1))
    return Sending.objects.get()


def test_a_mail_arrives_readable_and_once(box: Box, failed: None) -> None:
    assert send(SOON).state == SendingState.SENT
    send(SOON + timedelta(hours=1))

    (mail,) = box.taken
    assert box.logins == [USER]
    assert (mail["To"], mail["Subject"], mail["Auto-Submitted"]) == ("sam@example.org", "gpufleet: train-0 failed", "auto-generated")
    plain, html = (mail.get_body((kind,)) for kind in ("plain", "html"))
    assert plain is not None
    assert html is not None
    assert "Exit code 1 – out of memory, say the ranks." in plain.get_content()
    assert "Exit code 1 – out of memory, say the ranks." in html.get_content()


@pytest.mark.parametrize("trouble", ["450 4.2.1 Mailbox busy, try later", "550 5.1.1 No such user"])
def test_a_refusal_is_written_down_and_tried_again(box: Box, failed: None, trouble: str) -> None:
    box.refused.append(trouble)

    row = send(SOON)

    assert (row.state, box.taken) == (SendingState.WAITING, [])
    assert trouble.split(" ", 1)[1] in row.fault
    assert send(row.due_at).state == SendingState.SENT
    assert len(box.taken) == 1


def test_a_server_that_goes_away_in_the_middle_is_tried_again(box: Box, failed: None) -> None:
    box.broken += ["", "451 4.3.0 Disk full"]

    row = send(SOON)
    assert "SMTPServerDisconnected" in row.fault
    row = send(row.due_at)
    assert "Disk full" in row.fault

    assert send(row.due_at).state == SendingState.SENT
    assert len(box.taken) == 1


def test_a_wrong_password_is_named_and_given_up_after_a_day(box: Box, failed: None, settings: Any) -> None:
    settings.EMAIL_HOST_PASSWORD = "another one"
    row = send(SOON)
    assert "SMTPAuthenticationError" in row.fault
    assert "another one" not in row.fault

    row = send(SOON + GIVE_UP)

    assert (row.state, box.taken) == (SendingState.FAILED, [])


def test_who_has_mended_a_fault_may_send_the_next_test_at_once(box: Box, failed: None, personas: Personas, settings: Any) -> None:
    access = personas.access("submitter")
    right, settings.EMAIL_HOST_PASSWORD = settings.EMAIL_HOST_PASSWORD, "another one"
    notice_test(access=access, now=SOON)
    notices_read(access=access, keys=None, now=SOON)
    sendings_turn(clock=lambda: SOON, rng=random.Random(1))
    assert "SMTPAuthenticationError" in Sending.objects.get(notice__title=TEST_TITLE).fault

    settings.EMAIL_HOST_PASSWORD = right
    notice_test(access=access, now=SOON)
    sendings_turn(clock=lambda: SOON, rng=random.Random(1))

    assert [mail["Subject"] for mail in box.taken] == ["gpufleet: This is a test"]


def test_jobs_that_fail_while_the_server_is_away_are_told_in_one_mail(box: Box, failed: None, personas: Personas) -> None:
    box.refused.append("450 4.3.2 Shutting down")
    row = send(SOON)
    end(running(personas.users["submitter"], personas.nodes[TEAM], 2), JobState.FAILED, at=SOON + timedelta(seconds=5))
    outbox_turn(now=SOON + timedelta(seconds=6))

    sendings_turn(clock=lambda: max(row.due_at, NOON + timedelta(minutes=5)), rng=random.Random(1))

    assert [mail["Subject"] for mail in box.taken] == ["gpufleet: 3 notices about your jobs"]
