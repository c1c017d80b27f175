"""Nobody fills the disk by sending: large bodies are turned away before anything keeps them."""

import json
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from gpufleet.asgi import application
from gpufleet.core.bodies import BodyLimit
from gpufleet.problems import TITLES

MEBI = 1024 * 1024
pytestmark = pytest.mark.django_db(transaction=True)


def posting(*headers: tuple[bytes, bytes], path: str = "/accounts/login/") -> dict[str, Any]:
    place = {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http"}
    return {"type": "http", "method": "POST", **place, "headers": [(b"host", b"localhost"), *headers], "client": ("127.0.0.1", 1)}


async def test_a_body_that_is_announced_too_large_is_not_read():
    caller = ApplicationCommunicator(application, posting((b"content-length", b"99999999999")))

    assert (await caller.receive_output(30))["status"] == 413
    await caller.wait(30)


async def test_a_program_is_told_in_the_form_of_all_faults():
    caller = ApplicationCommunicator(application, posting((b"content-length", b"99999999999"), path="/api/v1/jobs"))

    begin, rest = await caller.receive_output(30), await caller.receive_output(30)
    headers, told = dict(begin["headers"]), json.loads(rest["body"])

    assert (begin["status"], headers[b"content-type"]) == (413, b"application/problem+json")
    assert (told["status"], told["title"]) == (413, TITLES[413])
    assert told["request_id"].encode() == headers[b"x-request-id"]
    await caller.wait(30)


async def test_a_body_that_grows_too_large_is_not_read_to_its_end():
    caller = ApplicationCommunicator(application, posting((b"content-type", b"multipart/form-data; boundary=x")))
    for _ in range(40):
        await caller.send_input({"type": "http.request", "body": b"x" * MEBI, "more_body": True})

    assert (await caller.receive_output(30))["status"] == 413
    assert caller.input_queue.qsize() > 20
    await caller.wait(30)


@pytest.mark.parametrize(("size", "whole"), [(4, True), (5, False)])
async def test_the_limit_itself_fits(size: int, whole: bool):
    got = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.append(await receive())

    caller = ApplicationCommunicator(BodyLimit(app, 4), posting())
    await caller.send_input({"type": "http.request", "body": b"x" * size})
    await caller.wait(30)

    assert (got[0]["type"] == "http.request") is whole
