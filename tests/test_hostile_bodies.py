"""Bodies of up to a megabyte that nobody means well: each is answered within a second of processor, and never with a fault of ours.

The bound is for a machine on which the calibration kernel takes 35 ms; a slower one gets as much longer.
"""

import gc
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.urls import reverse

from gpufleet.api import api
from tests import builders

MOST_BYTES = 1_000_000
SECONDS = 1.0
KERNEL_SECONDS = 0.035


def kernel() -> float:
    """The same work as the benchmarks' calibration: how slow this machine is now."""
    best = 1e9
    for _ in range(5):
        begun = time.process_time()
        sum(i * i for i in range(1_000_000))
        best = min(best, time.process_time() - begun)
    return best


def operations() -> list[tuple[str, str]]:
    """Method and address of every operation with a body; names in addresses are of things that exist, where there is one."""
    found = []
    for path, methods in api.get_openapi_schema()["paths"].items():
        for method, operation in methods.items():
            if "requestBody" in operation:
                place = path
                while "{" in place:
                    head, _, rest = place.partition("{")
                    place = head + "1" + rest.partition("}")[2]
                found.append((method.upper(), place))
    return found


def many_of(rng: random.Random, most: int) -> int:
    """Of each order of magnitude as many."""
    return int(most ** rng.random())


def wide(rng: random.Random) -> Any:
    return {f"k{number}": rng.choice([1, "x", None, []]) for number in range(many_of(rng, 60_000))}


def deep(rng: random.Random) -> str:
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    depth = many_of(rng, 200_000)
    return opening * depth + "1" + (closing * depth if rng.random() < 0.5 else "")


def numbers(rng: random.Random) -> str:
    return rng.choice(['{"gpus": %s}', '{"name": "a", "quota": "acme", "gpus": 1, "priority": %s}', "[%s]"]) % (
        rng.choice(["9" * many_of(rng, 9_000), "1e999999", "-0", "0." + "1" * 50_000, "NaN", "1E400"])
    )


def job(rng: random.Random) -> Any:
    """Nearly a job, with one thing blown up."""
    many = many_of(rng, 20_000)
    blown: dict[str, Callable[[], Any]] = {
        "roles": lambda: [{"name": f"r{number}", "gpus": rng.choice([1, "x", True])} for number in range(many)],
        "labels": lambda: {f"l{number}": "x" * rng.randrange(9) for number in range(many)},
        "launch": lambda: {"command": ["x"] * many, "env": {f"V{number}": "x" for number in range(many)}},
        "array": lambda: {"values": [{"a": number} for number in range(many)]},
        "after": lambda: [f"j-{number}" for number in range(many)],
        "gpu_types": lambda: [f"T{number}" for number in range(many)],
        "throughput": lambda: {f"T{number}": number for number in range(many)},
        "name": lambda: "x" * many * 10,
        "description": lambda: {"name": "x", **wide(rng)},
    }
    key = rng.choice(list(blown))
    return {"name": "a", "quota": "acme/research/nlp", "gpus": 1, key: blown[key]()}


def ids(rng: random.Random) -> Any:
    some = rng.choice([True, False, None, 1, "j-1", {}, [], "x" * 1000])
    return {rng.choice(["ids", "jobs", "scopes", "kinds"]): [some] * many_of(rng, 50_000), "action": "cancel", "reason": "x"}


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(many_of(rng, 100_000))


def bodies(seed: int, count: int) -> Iterator[tuple[str, str, bytes]]:
    rng, known = random.Random(seed), operations()
    jobs = [("POST", "/api/v1/jobs?dry_run=true"), ("POST", "/api/v1/fit")]
    for _ in range(count):
        made = rng.choice([wide, deep, numbers, job, job, ids, noise])(rng)
        data = made if isinstance(made, bytes) else (made if isinstance(made, str) else json.dumps(made)).encode()
        yield (*rng.choice(jobs if rng.random() < 0.3 else known), data[:MOST_BYTES])


def yamls(seed: int, count: int) -> Iterator[str]:
    rng = random.Random(seed)
    forms: list[Callable[[int], str]] = [
        lambda many: "gpus: 0x" + "1" * many,
        lambda many: "gpus: " + "9" * many,
        lambda many: "a:\n" + "- a\n" * many,
        lambda many: "[" * many,
        lambda many: "{a: " * many,
        lambda many: "\n".join(f"k{number}: 1" for number in range(many)),
        lambda many: "name: a\nquota: b\ngpus: 1\nlabels:\n" + "\n".join(f"  k{number}: x" for number in range(many)),
        lambda many: "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"b{number}: &b{number} [*a,*a,*a,*a]\n" for number in range(many)),
        lambda _: "a: &a [*a]",
        lambda many: "? " * many,
        lambda many: "a: !!binary " + "A" * many,
        lambda many: "roles:\n" + "- {gpus: 1, foo: 2}\n" * many,
        lambda many: "a: '" + "x" * many,
    ]
    for _ in range(count):
        yield rng.choice(forms)(many_of(rng, 200_000))[:MOST_BYTES]


@pytest.fixture
def client(personas: Any) -> Iterator[Any]:
    """A superuser's client. What earlier tests left on the heap is out of the collector's way: it took a second to walk it within a request."""
    builders.node("n1", of=builders.cluster("c"), gpus=8)
    gc.collect()
    gc.freeze()
    yield personas.client("superuser")
    gc.unfreeze()


TRIES = 3


def within(bound: float, ask: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and the least processor time that it took. What is late is asked again, measured against how slow the machine is by then: a slow
    answer is slow each time, while a neighbour on the same core is busy now and then.
    """
    least = float("inf")
    for turn in range(TRIES):
        slower = max(1.0, kernel() / KERNEL_SECONDS) if turn else 1.0
        begun = time.process_time()
        answer = ask()
        least = min(least, (time.process_time() - begun) / slower)
        if answer.status_code >= 500 or least <= bound:
            break
    return answer, least


def hold(client: Any, seed: int, count: int) -> None:
    faults = []
    for method, path, data in bodies(seed, count):
        answer, took = within(SECONDS, partial(client.generic, method, path, data, content_type="application/json"))
        if answer.status_code >= 500 or took > SECONDS:
            faults.append(f"{method} {path} {len(data)} bytes {data[:60]!r}: {answer.status_code} in {took:.2f} s")
    for text in yamls(seed, count // 10):
        answer, took = within(SECONDS, partial(client.post, reverse("job_look"), {"yaml": text, "_from": "yaml"}))
        if answer.status_code >= 500 or took > SECONDS:
            faults.append(f"YAML {len(text)} characters {text[:60]!r}: {answer.status_code} in {took:.2f} s")
    assert faults == []


@pytest.mark.django_db
def test_a_few_hostile_bodies_are_answered_quickly_and_without_a_fault_of_ours(client):
    hold(client, 1, 150)


@pytest.mark.soak
@pytest.mark.django_db
def test_ten_thousand_hostile_bodies(client):
    hold(client, int(os.environ.get("SOAK_SEED") or 1), 10_000)


@pytest.mark.django_db
def test_problems_beyond_the_first_are_counted_not_listed(client):
    body = {"name": "a", "quota": "acme/research/nlp", "gpus": 1, **{f"k{number}": 1 for number in range(8_000)}}

    answer = client.post("/api/v1/jobs?dry_run=true", json.dumps(body), content_type="application/json")

    assert answer.status_code == 422
    assert len(answer.content) < 20_000
    assert "problems are not listed" in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/v1/quota-changes", "/api/v1/budgets", "/api/v1/reservations"])
def test_unknown_keys_beyond_the_first_are_counted_of_any_body(client, path):
    answer = client.post(path, json.dumps({f"k{number}": 1 for number in range(8_000)}), content_type="application/json")

    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 100
    assert "more problems are not listed" in answer.json()["detail"]


@pytest.mark.django_db
def test_an_object_of_more_keys_than_any_field_takes_is_not_read(client):
    answer = client.post("/api/v1/budgets", json.dumps({f"k{number}": 1 for number in range(10_001)}), content_type="application/json")

    assert answer.status_code == 400
    assert answer.json()["detail"] == "One object of the body has 10,001 keys; at most 10,000 are read."
