"""Every GPU is divided among causes: the parts are the fleet, whatever the fleet, its work and its queue look like."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dashboards.gap.causes import AWAY, BROKEN, UP, Ask, Cause, Device, Hold, Reserved, Role, divided

H100, A100 = "H100", "A100"


def places(node: int) -> dict[str, str]:
    """Two nodes a leaf, two leaves a cluster."""
    return {"cluster": f"c{node // 4}", "leaf": f"c{node // 4}/l{node // 2}", "node": f"n{node}"}


@st.composite
def devices(draw: st.DrawFn) -> list[Device]:
    made = []
    for key in range(draw(st.integers(0, 24))):
        sizes = draw(st.lists(st.sampled_from([100, 142, 333, 500, 1000]), max_size=3))
        holds = [Hold(size, draw(st.sampled_from(["batch", "service"])), draw(st.integers(1, 3)), draw(st.booleans())) for size in sizes]
        made.append(
            Device(
                key,
                key // 4,
                A100 if key // 4 % 2 else H100,
                draw(st.sampled_from(["", "main"])),
                draw(st.sampled_from([UP, UP, UP, BROKEN, AWAY])),
                draw(st.none() | st.integers(0, 100)),
                holds,
                draw(st.sampled_from([0, 0, 500, 1000])),
                draw(st.booleans()),
                places(key // 4),
            )
        )
    return made


LEVELS = st.sampled_from(["", "cluster", "leaf", "node", "hall"])
ROLES = st.builds(
    Role, st.integers(1, 8), st.integers(1, 8), st.sampled_from([frozenset(), frozenset((H100,))]), st.sampled_from([0, 0, 250]), level=LEVELS
)
ASKS = st.lists(st.builds(Ask, st.lists(ROLES, min_size=1, max_size=3).map(tuple), level=LEVELS, behind=st.booleans()), max_size=6)
RESERVED = st.lists(st.builds(Reserved, st.sampled_from([H100, A100]), st.integers(0, 9000), st.none() | st.integers(1, 3)), max_size=3)


def by_cause(fleet: list[Device], asks: list[Ask] | None = None, reserved: list[Reserved] | None = None) -> dict[str, int]:
    found: Counter[str] = Counter()
    for part, milli in divided(fleet, asks or (), reserved or ()).items():
        found[part.cause] += milli
    return {cause: milli for cause, milli in found.items() if milli}


@given(devices(), ASKS, RESERVED)
def test_the_parts_are_the_fleet_to_the_thousandth(fleet: list[Device], asks: list[Ask], reserved: list[Reserved]) -> None:
    parts = divided(fleet, asks, reserved)

    assert all(milli >= 0 for milli in parts.values())
    for name in (H100, A100):
        assert sum(milli for part, milli in parts.items() if part.gpu_type == name) == 1000 * sum(one.gpu_type == name for one in fleet)
    held = {part.quota for part in parts if part.cause in (Cause.COMPUTING, Cause.IDLE, Cause.UNREAD, Cause.STARTING)}
    assert None not in held
    assert parts == divided(fleet[::-1], asks, reserved)


@given(devices(), ASKS)
def test_a_waiting_job_has_room_for_all_of_it_or_for_nothing(fleet: list[Device], asks: list[Ask]) -> None:
    """Of one that fits alone: as much is wanted as it asks for, else nothing. Spares are nobody's."""
    free = [replace(one, holds=(), promised=0) for one in fleet]
    for ask in asks:
        ask = replace(ask, behind=False)
        assert by_cause(free, [ask]).get("wanted", 0) in (0, sum(role.milli_in_all for role in ask.roles))
        assert "wanted" not in by_cause([replace(one, spare=True) for one in free], [ask])


def gpu(key: int, *holds: Hold, sm: int | None = 50, state: str = UP, node: int = 0, spare: bool = False) -> Device:
    return Device(key, node, H100, "main", state, sm, holds, spare=spare, domains=places(node))


def ask(workers: int, gpus: int, types: frozenset[str] = frozenset(), *, level: str = "", behind: bool = False) -> Ask:
    return Ask((Role(workers, gpus, types),), level, behind)


def hold(milli: int = 1000, *, starting: bool = False) -> Hold:
    return Hold(milli, "batch", 7, starting)


def test_what_is_allocated_computes_idles_starts_or_is_not_read() -> None:
    fleet = [gpu(1, hold()), gpu(2, hold(starting=True)), gpu(3, hold(), sm=None), gpu(4, hold(), state=BROKEN), gpu(5, hold(), state=AWAY)]

    assert by_cause(fleet) == {"computing": 1000, "idle": 1000, "starting": 1000, "unread": 1000, "failed": 1000}


def test_shares_of_a_gpu_compute_in_proportion() -> None:
    parts = divided([gpu(1, Hold(333, "batch", 1, False), Hold(500, "batch", 2, False), sm=10)])

    assert {(part.cause.value, part.quota): milli for part, milli in parts.items()} == {
        ("computing", 1): 40,
        ("idle", 1): 293,
        ("computing", 2): 60,
        ("idle", 2): 440,
        ("unwanted", None): 167,
    }


def test_what_is_free_is_wanted_fragmented_or_unwanted() -> None:
    free = [gpu(key, node=key // 2) for key in range(6)]

    assert by_cause(free) == {"unwanted": 6000}
    assert by_cause(free, [ask(1, 2)]) == {"wanted": 2000, "unwanted": 4000}
    assert by_cause(free, [ask(1, 4)]) == {"fragmented": 4000, "unwanted": 2000}
    assert by_cause(free, [ask(1, 8), ask(2, 1)]) == {"wanted": 2000, "fragmented": 4000}
    assert by_cause(free, [ask(1, 1, frozenset((A100,)))]) == {"unwanted": 6000}
    # What only a window that is to come keeps from a job is kept for that window.
    assert by_cause(free, [ask(1, 2, behind=True), ask(1, 1)]) == {"reserved": 2000, "wanted": 1000, "unwanted": 3000}


def test_a_gang_that_must_lie_in_one_domain_is_not_served_across_two() -> None:
    """Nodes 0 and 1 lie in one leaf, 2 and 3 in another; 4 is in another cluster."""
    free = [gpu(key, node=key // 2) for key in (0, 1, 4, 5)]

    assert by_cause(free, [ask(2, 2, level="leaf")]) == {"fragmented": 4000}
    assert by_cause(free, [ask(2, 2, level="cluster")]) == {"wanted": 4000}
    assert by_cause([*free, gpu(6, node=3), gpu(7, node=3)], [ask(2, 2, level="leaf")]) == {"wanted": 4000, "unwanted": 2000}
    assert by_cause([gpu(0), gpu(8, node=4)], [ask(2, 1, level="cluster")]) == {"fragmented": 2000}
    assert by_cause([gpu(0), gpu(8, node=4)], [ask(2, 1)]) == {"wanted": 2000}
    assert by_cause(free, [ask(2, 1, level="node")]) == {"wanted": 2000, "unwanted": 2000}
    # Its second role alone must lie in one leaf.
    assert by_cause(free, [Ask((Role(1, 1), Role(2, 1, level="leaf")))]) == {"wanted": 3000, "unwanted": 1000}
    assert by_cause(free, [Ask((Role(1, 1), Role(3, 1, level="leaf")))]) == {"fragmented": 4000}


def test_a_gang_of_several_roles_is_served_as_a_whole() -> None:
    free = [gpu(key, node=key // 2) for key in range(4)]

    assert by_cause(free, [Ask((Role(1, 2), Role(2, 2)))]) == {"fragmented": 4000}
    assert by_cause(free, [Ask((Role(1, 2), Role(2, 2))), ask(1, 1)]) == {"wanted": 1000, "fragmented": 3000}
    assert by_cause(free, [Ask((Role(1, 1), Role(1, 2)))]) == {"wanted": 3000, "unwanted": 1000}


def test_spares_are_for_no_waiting_job() -> None:
    free = [gpu(key, spare=True) for key in range(2)]

    assert by_cause(free, [ask(1, 1), ask(1, 8)]) == {"unwanted": 2000}
    assert by_cause(free, (), [Reserved(H100, 2000, 9)]) == {"unwanted": 2000}
    assert by_cause([*free, gpu(2, node=1)], [ask(1, 1)]) == {"wanted": 1000, "unwanted": 2000}


def test_what_is_out_of_service_is_failed_or_drained() -> None:
    assert by_cause([gpu(1, state=BROKEN), gpu(2, state=AWAY), gpu(3, hold(400), state=AWAY, sm=100)]) == {
        "failed": 1000,
        "drained": 1600,
        "computing": 400,
    }


def test_a_reservation_keeps_what_its_owner_does_not_use() -> None:
    parts = divided([gpu(1), gpu(2), gpu(3, hold())], [ask(1, 1)], [Reserved(H100, 1500, 9)])

    assert {(part.cause.value, part.quota): milli for part, milli in parts.items() if part.cause != Cause.COMPUTING} == {
        ("reserved", 9): 1500,
        ("fragmented", None): 500,
        ("idle", 7): 500,
    }
