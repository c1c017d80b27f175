"""Answers of a server, read: what is believed of them, and what is counted as odd."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboards.prometheus.asking import PrometheusFault
from dashboards.prometheus.collect import gpus_known
from dashboards.prometheus.dcgm import FIELDS, NICS, ODDITIES, look, query_of
from scheduler.models import Gpu
from tests import builders
from tests.dashboards.worlds import gpus_of


def test_a_look_outlives_a_query_of_adapters_that_fails() -> None:
    def ask(query: str) -> list[dict[str, object]]:
        if query == NICS:
            raise PrometheusFault("query timed out")
        return [{"metric": {"UUID": "GPU-0"}, "value": [0, "0.5"]}] if query == query_of(FIELDS[0]) else []

    found = look(ask, known={"GPU-0": 7}, now=0)
    assert (dict(found.gpus), found.odd["no_nics"]) == ({"GPU-0": {FIELDS[0].key: 0.5}}, 1)


@pytest.mark.parametrize(
    ("slices", "instances", "percent", "odd"),
    [
        (7, [("1g.10gb", 1), ("1g.10gb+me", 1), ("2g.20gb", 1), ("3g.40gb", 1)], 100, 0),
        (7, [("1g.10gb+me", 0.7)], 10, 0),
        (4, [("1g.6gb", 1)] * 4, 100, 0),
        (4, [("2g.12gb", 0.5), ("1g.6gb", 1)], 50, 0),
        (7, [("3g.40gb", 0), ("4g.40gb", 1.7)], None, 0),
        (7, [("3g.40gb", 0), ("4g.40gb", float("nan"))], None, 0),
        (4, [("7g.80gb", 1), ("1g.6gb", 1)], None, 1),
    ],
)
def test_instances_count_by_their_slices_of_the_board(slices: int, instances: list[tuple[str, float]], percent: int | None, odd: int) -> None:
    """One that cannot be believed leaves the GPU without a reading: the others alone would make it look idle."""
    labels = [{"UUID": "GPU-0", "GPU_I_ID": str(number), "GPU_I_PROFILE": profile} for number, (profile, _) in enumerate(instances)]
    series = [{"metric": one, "value": [0, str(value)]} for one, (_, value) in zip(labels, instances, strict=True)]

    found = look(lambda query: series if query == query_of(FIELDS[0]) else [], known={"GPU-0": slices}, now=0)

    sm = found.gpus["GPU-0"].get("sm")
    assert (None if sm is None else round(100 * sm), found.odd["wrong_profile"]) == (percent, odd)


@pytest.mark.django_db
def test_a_board_of_four_slices_is_known_by_its_type() -> None:
    for number, kind in enumerate(("A30-24GB", "H100-SXM-80GB", "L40S-48GB")):
        gpu = gpus_of(builders.node(gpus=1))[0]
        Gpu.objects.filter(pk=gpu.pk).update(uuid=f"GPU-{number}", gpu_type=builders.gpu_type(kind))

    assert [one.slices for one in gpus_known().values()] == [4, 7, 7]


ODD = st.sampled_from(["0", "0.5", "1", "1.7", "-1", "NaN", "+Inf", "1e9", "", "x", "100", "41", 10**400, None, [], {}])
LABELS = st.fixed_dictionaries(
    {},
    optional={
        "UUID": st.sampled_from(["GPU-0", "GPU-1", "GPU-x", "", '"}) or vector(1)']),
        "GPU_I_ID": st.sampled_from(["", "1", "2"]),
        "GPU_I_PROFILE": st.sampled_from(["1g.10gb", "7g.80gb", "9g.1gb", "?"]),
    },
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.fixed_dictionaries({"metric": LABELS, "value": st.tuples(st.just(100.0), ODD)}) | st.just({"metric": None}), max_size=12))
def test_no_answer_gives_an_impossible_reading(series: list[dict[str, object]]) -> None:
    asked: list[str] = []

    def ask(query: str) -> list[dict[str, object]]:
        asked.append(query)
        return series

    found = look(ask, known={"GPU-0": 7, "GPU-1": 4}, now=100.0)

    bounds = {one.key: one for one in FIELDS}
    assert all(
        bounds[key].least <= value <= bounds[key].most for read in found.gpus.values() for key, value in read.items() if key not in ("used", "free")
    )
    assert set(found.gpus) <= {"GPU-0", "GPU-1"}
    assert set(found.odd) <= set(ODDITIES)
    assert not any("vector(1)" in query for query in asked)
