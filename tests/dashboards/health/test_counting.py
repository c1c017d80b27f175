"""Several sources of one counter: whatever each of them leaves out, counts late or from elsewhere on, nothing counts twice."""

from collections import Counter
from dataclasses import dataclass, field, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.health.counting import UNREAD, Counts, XidState, followed, grown, xids_counted

GPU = np.array([8], np.uint64)
EVERY = 15  # seconds between looks
LOOKS = 24
SOURCES = 3
told_or_not = st.lists(st.lists(st.booleans(), min_size=LOOKS, max_size=LOOKS), min_size=SOURCES, max_size=SOURCES)
# So late is a server that scrapes each half minute.
lags = st.lists(st.integers(0, 2), min_size=SOURCES, max_size=SOURCES)


def one(value: int | None) -> np.ndarray:
    return np.array([UNREAD if value is None else value], np.uint32)


@dataclass
class Followed:
    """A counter of one GPU, looked at again and again."""

    last: np.ndarray = field(default_factory=lambda: one(None))
    base: np.ndarray = field(default_factory=lambda: one(None))
    told: np.ndarray = field(default_factory=lambda: one(None))
    grown: int = 0

    def look(self, number: int, figures: dict[int, int], parts: dict[int, int] | None = None) -> None:
        counts = [Counts(source, {"ecc": {8: figure}}, [8], {"ecc": {8: (parts or {}).get(source, 0)}}) for source, figure in sorted(figures.items())]
        now, base, self.told = followed(self.base, self.told, [one.column("ecc", GPU) for one in counts], 1000 + EVERY * number)
        self.grown += int(grown(self.last, self.base, now, base)[0])
        self.last, self.base = np.where(now == UNREAD, self.last, now), base


@given(
    st.lists(st.integers(0, 9), min_size=LOOKS, max_size=LOOKS), lags, st.lists(st.integers(0, 99), min_size=SOURCES, max_size=SOURCES), told_or_not
)
def test_nothing_counts_twice_however_a_counter_changes_hands(errors, late, offsets, tells):
    truth, counter = np.cumsum(errors).tolist(), Followed()
    for number in range(LOOKS):
        counter.look(number, {s: truth[max(0, number - late[s])] + offsets[s] for s in range(SOURCES) if tells[s][number]})

    assert counter.grown <= truth[-1] - truth[0]


def test_a_source_that_is_there_is_followed_and_another_takes_over_after_a_while():
    counter = Followed()
    for number, figures in enumerate([{1: 100, 2: 40}, {1: 105, 2: 41}, {2: 49}, {1: 107, 2: 50}, {2: 52}, {2: 53}, {2: 54}, {1: 3, 2: 60}]):
        counter.look(number, figures)

    assert counter.grown == 5 + 2 + (60 - 54)


def test_a_sum_with_a_part_missing_is_no_reset():
    counter = Followed()
    for number, (figure, parts) in enumerate([(500, 4), (503, 4), (310, 3), (311, 3), (505, 4), (506, 4)]):
        counter.look(number, {1: figure}, {1: parts})

    assert counter.grown == 3 + 1 + 1


@dataclass
class Told:
    """XIDs of one GPU as the kernel's log and servers tell them."""

    state: XidState = field(default_factory=lambda: XidState(*(one(None) for _ in fields(XidState))))
    counted: Counter[int] = field(default_factory=Counter)

    def look(self, number: int, servers: dict[int, int | None], log: list[int] | None, records: list[int]) -> None:
        """`log` are all codes in it, `records` those since it was read before."""
        offers = [Counts(source, {"xid": {} if code is None else {8: code}}, [8]).column("xid", GPU) for source, code in sorted(servers.items())]
        second = 1000 + EVERY * number
        self.state, news, from_log = xids_counted(
            self.state,
            offers,
            np.array([bool(servers)]),
            np.array([log is not None]),
            one(log[-1] if log else None),
            second=second,
        )
        self.counted[int(self.state.heard[0])] += bool(news[0])
        self.counted.update(records if from_log[0] else [])


@given(st.lists(st.sampled_from([0, 0, 0, 0, 31, 48, 79]), min_size=LOOKS, max_size=LOOKS), lags, told_or_not, st.booleans())
def test_an_xid_counts_once_whoever_tells_it(codes, late, tells, has_log):
    """The first source is the kernel's log. A server tells the last code, or leaves it out where there was none."""
    told, read = Told(), 0
    for number in range(LOOKS):
        servers = {}
        for source in range(1, SOURCES):
            if tells[source][number]:
                before = [code for code in codes[: max(0, number - late[source]) + 1] if code]
                servers[source] = before[-1] if before else None
        seen = [code for code in codes[: number + 1] if code]
        log = seen if has_log and tells[0][number] else None
        told.look(number, servers, log, seen[read:] if log is not None and read >= 0 else [])
        read = len(seen) if log is not None else read

    there = Counter(code for code in codes if code)
    assert all(told.counted[code] <= there[code] for code in told.counted if code), (codes, late, tells, has_log, told.counted)
    if has_log and all(tells[0]):
        assert +Counter({code: count for code, count in told.counted.items() if code}) == there


@pytest.mark.parametrize("unread_from", [2, 3, 4])
def test_what_comes_while_one_source_takes_over_from_another_is_told(unread_from: int):
    """The log can't be read any more, the XID comes, and it is the server's to tell once the log was silent for a while."""
    told = Told()
    for number, code in enumerate([None] * 4 + [79] * 5):
        told.look(number, {1: code}, [] if number < unread_from else None, [])

    assert told.counted[79] == 1


@given(
    st.lists(st.sampled_from([0, 0, 0, 31, 48, 79]), min_size=LOOKS, max_size=LOOKS),
    st.lists(st.sets(st.integers(0, SOURCES - 1)), min_size=LOOKS // 4, max_size=LOOKS // 4),
    st.lists(st.sets(st.sampled_from([31, 48, 79])), min_size=SOURCES, max_size=SOURCES),
    st.lists(st.integers(0, LOOKS // 2), min_size=SOURCES, max_size=SOURCES),
)
def test_an_xid_counts_once_by_servers_whose_exporters_know_of_different_ones(codes, turns, unknown, began):
    """An exporter was started later than another, or does not hear of some XIDs. Servers tell for a minute, or for several."""
    told = Told()
    for number in range(LOOKS):
        servers = {}
        for source in turns[number // 4]:
            known = [code for code in codes[began[source] : number + 1] if code and code not in unknown[source]]
            servers[source + 1] = known[-1] if known else 0
        told.look(number, servers, None, [])

    there = Counter(code for code in codes if code)
    assert all(told.counted[code] <= there[code] for code in told.counted if code), told.counted


def test_an_old_xid_does_not_count_again_where_two_servers_take_turns():
    told = Told()
    for number, servers in enumerate([{1: 0}, {1: 31}, {1: 79}, *[{2: 31}] * 5, *[{1: 79}] * 5, *[{2: 31}] * 5]):
        told.look(number, servers, None, [])

    assert (told.counted[31], told.counted[79]) == (1, 1)


def test_an_xid_that_comes_while_one_server_takes_over_from_another_is_told():
    told = Told()
    for number, servers in enumerate([{1: 31, 2: 31}, {1: 31, 2: 31}, *[{2: 79}] * 5, *[{1: 79}] * 5]):
        told.look(number, servers, None, [])

    assert told.counted[79] == 1


@pytest.mark.parametrize(
    "looks",
    [
        [{1: 31, 2: 31}, {1: 31, 2: 79}, *[{2: 79}] * 5],
        [{1: 31, 2: 31}, {1: 31}, *[{2: 79}] * 5],
        [{1: 31}, {2: 31}, *[{2: 79}] * 5],
        [{1: 31, 2: 31, 3: 31}, {2: 31, 3: 31}, {3: 79}, {3: 79}, *[{2: 79, 3: 79}] * 5],
    ],
    ids=["heard a look before", "missed the last look", "read in the silence alone", "one of three missed a look"],
)
def test_an_xid_of_a_server_that_takes_over_is_told(looks: list[dict[int, int | None]]):
    told = Told()
    for number, servers in enumerate(looks):
        told.look(number, servers, None, [])

    assert told.counted[79] == 1


@pytest.mark.parametrize("seed", range(3))
def test_no_xid_is_lost_or_counts_twice_where_servers_die_miss_looks_or_lag(seed: int):
    """Each GPU is a draw of its own. Each server hears of each XID, some of them a look late; XIDs are six looks or more apart.

    An XID must count where some server was read from the look before it to the one in which another could have taken over.
    """
    rng, gpus, looks = np.random.default_rng(seed), 2000, 48
    arrivals = np.cumsum(rng.integers(6, 10, (gpus, 4)), axis=1)
    servers = rng.integers(2, 4, gpus)
    late, read, codes = rng.integers(0, 2, (3, gpus)), np.ones((3, gpus, looks), bool), np.zeros((3, gpus, looks), np.uint32)
    for server in range(3):
        read[server] &= rng.random((gpus, looks)) > rng.choice([0, 0.05, 0.3], (gpus, 1))
        for _ in range(2):
            died, took = rng.integers(0, looks, (gpus, 1)), rng.integers(0, 16, (gpus, 1))
            read[server] &= (np.arange(looks) < died) | (np.arange(looks) >= died + took)
        read[server, servers <= server] = False
        codes[server] = (arrivals[:, :, None] + late[server, :, None, None] <= np.arange(looks)).sum(axis=1)

    state, counted = XidState(*(np.full(gpus, UNREAD, np.uint32) for _ in fields(XidState))), np.zeros((gpus, 5), int)
    none = np.zeros(gpus, bool)
    for number in range(looks):
        offers = [(np.where(read[one, :, number], codes[one, :, number], UNREAD), np.full(gpus, one + 1 << 12, np.uint32)) for one in range(3)]
        seen = read[:, :, number].any(axis=0)
        state, news, _ = xids_counted(state, offers, seen, none, np.full(gpus, UNREAD, np.uint32), second=1000 + EVERY * number)
        counted[np.nonzero(news)[0], state.heard[news]] += 1

    must = np.zeros((gpus, 5), bool)
    for gpu, xid in np.ndindex(gpus, 4):
        came = arrivals[gpu, xid]
        must[gpu, xid + 1] = any(read[one, gpu, came + late[one, gpu] - 1 : came + 6].all() for one in range(3))
    assert must.sum() > gpus
    assert not np.argwhere(counted > 1).tolist()
    assert not np.argwhere(must & (counted == 0)).tolist()
