"""Which processors a worker gets for itself: a function of the machine and of what is owned already."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.backends.processors import OTHERS, SERVICES, Processor, Topology, chosen, pools
from scheduler.backends.supervising.cpulists import list_of, read_list


def machine(*, numa: int = 2, cores: int = 2, threads: int = 2) -> Topology:
    """As two sockets number them often: first one thread of each core, then the second ones."""
    count = numa * cores
    return Topology(tuple(Processor(thread * count + core, core, core // cores) for thread in range(threads) for core in range(count)))


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    numbers = draw(st.lists(st.integers(0, 200), min_size=1, max_size=24, unique=True))
    core_of = draw(st.lists(st.integers(0, 10), min_size=len(numbers), max_size=len(numbers)))
    nodes = draw(st.lists(st.integers(0, 3), min_size=11, max_size=11))
    return Topology(tuple(Processor(number, core, nodes[core]) for number, core in zip(numbers, core_of, strict=True)))


@st.composite
def asked(draw: st.DrawFn) -> tuple[Topology, frozenset[int], int, int | None, int]:
    topology = draw(machines())
    owned = frozenset(draw(st.lists(st.sampled_from(sorted(topology.numbers)), unique=True)))
    return topology, owned, draw(st.integers(1, 26)), draw(st.none() | st.integers(0, 4)), draw(st.integers(0, 1))


@given(asked())
def test_a_worker_gets_as_many_as_it_states_and_none_of_another_worker(one):
    topology, owned, wanted, near, spared = one
    found = chosen(topology, owned, wanted, near=near, spared=spared)
    free = topology.numbers - owned - topology.kept

    if found is None:
        assert len(free) < wanted + spared
        return
    assert len(found) == wanted
    assert found <= free
    assert len(free - found) >= spared
    shuffled = Topology(tuple(reversed(topology.processors)))
    assert found == chosen(shuffled, frozenset(sorted(owned, reverse=True)), wanted, near=near, spared=spared)


@given(asked())
def test_the_node_of_its_gpus_goes_first_and_at_most_one_whole_core_is_split(one):
    topology, owned, wanted, near, _ = one
    found = chosen(topology, owned, wanted, near=near)
    if found is None:
        return
    free = topology.numbers - owned - topology.kept
    there = {processor.number for processor in topology.processors if processor.numa == near} & free
    assert len(found & there) == min(wanted, len(there))

    cores: dict[int, set[int]] = {}
    for processor in topology.processors:
        cores.setdefault(processor.core, set()).add(processor.number)
    assert sum(numbers <= free and 0 < len(numbers & found) < len(numbers) for numbers in cores.values()) <= 1


@given(asked(), st.sets(st.sampled_from([SERVICES, OTHERS])))
def test_those_who_own_nothing_have_the_rest_and_services_share_no_processor_with_other_work(one, kinds):
    topology, owned, *_ = one
    found = pools(topology, owned - topology.kept, kinds)
    rest = topology.numbers - (owned - topology.kept)

    assert found[SERVICES] | found[OTHERS] == rest
    assert all(found[kind] for kind in kinds) or len(rest) < 2
    if len(kinds) == 2:
        assert not found[SERVICES] & found[OTHERS]
    else:
        assert found[SERVICES] == found[OTHERS] == rest


def test_threads_of_a_core_stay_together_near_the_gpus():
    assert chosen(machine(), (), 2, near=1) == {2, 6}
    assert chosen(machine(), (), 4, near=1) == {2, 3, 6, 7}
    assert chosen(machine(), (), 1, near=0) == {4}  # its core is split already: the first thread stays with the console
    assert chosen(machine(), (), 5, near=1) == {2, 3, 4, 6, 7}


def test_without_gpus_the_fullest_node_that_has_room_is_used():
    assert chosen(machine(), (), 3) == {1, 4, 5}
    assert chosen(machine(), {1, 5}, 2) == {2, 6}
    assert chosen(machine(), {1, 5}, 1) == {4}


def test_the_first_processor_is_never_owned():
    assert chosen(machine(numa=1, cores=1), (), 1) == {1}
    assert chosen(machine(numa=1, cores=1), (), 2) is None
    assert machine(numa=1, cores=1).most == 1


def test_services_and_other_work_that_state_nothing_have_cores_of_their_own():
    assert pools(machine(), {2, 6}, {SERVICES, OTHERS}) == {SERVICES: {0, 4, 1, 5}, OTHERS: {3, 7}}
    assert pools(machine(numa=1, cores=1), (), {SERVICES, OTHERS}) == {SERVICES: {0}, OTHERS: {1}}
    assert pools(machine(numa=1, cores=1), {1}, {SERVICES, OTHERS})[OTHERS] == frozenset()


@given(st.frozensets(st.integers(0, 300)))
def test_a_list_of_processors_reads_back(numbers):
    assert read_list(list_of(numbers)) == numbers


def test_lists_are_as_the_kernel_writes_them():
    assert list_of({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"
    assert read_list("0-2,5,7-8\n") == {0, 1, 2, 5, 7, 8}
    assert read_list("\n") == frozenset()
