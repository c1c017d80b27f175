"""Who counts: of each counter of each device one source at a time. Arrays in, arrays out; devices are in ascending order.

Counters of two sources differ: one lags, one was started later, one counts more. What changes hands begins anew: its first figure is the base of what
it grows by, never growth itself.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

UNREAD = np.uint32(0xFFFFFFFF)
OWN = 0  # this machine's driver and kernel, or what else writes a cluster by itself; a server is told by its key
HANDOVER_SECONDS = 45  # a source that told nothing of a counter for so long makes room for another one
_PARTS_BITS = 12

Words = NDArray[np.uint32]
Keys = NDArray[np.uint64]
Truths = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Counts:
    """What one source tells in one look: figures by counter and device (the last XID is one of them), and the devices that it tells of at all.

    Of a figure that is a sum over links or adapters, `parts` says of how many.
    """

    source: int
    figures: Mapping[str, Mapping[int, int]]
    devices: Collection[int] = ()
    parts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def column(self, counter: str, devices: Keys) -> tuple[Words, Words]:
        """Its figures of a counter, and what they are based on: the source, and the number of parts."""
        figures, parts = aligned(self.figures.get(counter, {}), devices), aligned(self.parts.get(counter, {}), devices)
        return figures, np.where(parts == UNREAD, 0, np.minimum(parts, (1 << _PARTS_BITS) - 1)) | np.uint32(self.source << _PARTS_BITS)


def source_of(base: Words) -> Words:
    return base >> np.uint32(_PARTS_BITS)


def aligned(values: Mapping[int, int], devices: Keys) -> Words:
    """In the order of the devices; what is of none of them is left out."""
    found = np.full(len(devices), UNREAD, np.uint32)
    if len(devices) and values:
        keys, figures = np.fromiter(values.keys(), np.uint64, len(values)), np.fromiter(values.values(), np.uint32, len(values))
        place = np.minimum(np.searchsorted(devices, keys), len(devices) - 1)
        there = devices[place] == keys
        found[place[there]] = figures[there]
    return found


def followed(base: Words, told: Words, offers: Iterable[tuple[Words, Words]], second: int) -> tuple[Words, Words, Words]:
    """Of one counter its figures, what they are based on, and when they were told last; `offers` are those of the sources, the first one first.

    The source that was followed is followed on. Where it told nothing for a while, the first that tells something takes over.
    """
    figures, offers = np.full_like(base, UNREAD), list(offers)
    after = base.copy()
    for offered, basis in offers:
        mine = (offered != UNREAD) & (base != UNREAD) & (source_of(basis) == source_of(base))
        figures[mine], after[mine] = offered[mine], basis[mine]
    free = (figures == UNREAD) & ((base == UNREAD) | is_over(told, second))
    for offered, basis in offers:
        taken = free & (offered != UNREAD)
        figures[taken], after[taken] = offered[taken], basis[taken]
        free &= ~taken
    return figures, after, np.where(figures == UNREAD, told, np.uint32(second)).astype(np.uint32)


def grown(last: Words, last_base: Words, now: Words, base: Words) -> Words:
    """What a counter grew by. One that fell was reset: all that it shows has come since. One on another base has not grown."""
    same = (now != UNREAD) & (last != UNREAD) & ((base == last_base) | (last_base == UNREAD))
    return np.where(same, np.where(now >= last, now - last, now), 0).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class XidState:
    """Of each GPU: the server that tells its XIDs, when it did last, and that code; when the kernel's log told of it, and the last code there;
    two other servers that tell it too, and of each the code that it had when it was last known to have nothing new.
    """

    base: Words
    told: Words
    heard: Words
    logged_at: Words
    logged: Words
    other: Words
    other_code: Words
    third: Words
    third_code: Words

    @property
    def beside(self) -> tuple[tuple[Words, Words], ...]:
        return (self.other, self.other_code), (self.third, self.third_code)


def xids_counted(
    before: XidState,
    offers: Sequence[tuple[Words, Words]],
    seen: Truths,
    in_log: Truths,
    last_logged: Words,
    *,
    second: int,
) -> tuple[XidState, Truths, Truths]:
    """Whose XIDs count: those of the log where it can be read, as it tells each one, else the code of a server where that is a new one.

    Returns of each GPU whether the code of its server is news, and whether new records of the log are. What one of them has told does not count again
    when the other takes over. A server that takes over, first of all one that was read before, has news only where its own code has changed since
    it was in step with what counted: it may never have heard of what the other told. What it told first, or after it was not read while two XIDs
    counted, is taken for an old one.
    `in_log` are the GPUs of which the log of this look tells, `last_logged` the last code in it, `seen` those of servers.
    """
    beside = [(_told_by(server, offers), server) for server, _ in before.beside]
    code, base, told = followed(before.base, before.told, [*beside, *offers], second)
    known, heard_before = before.logged_at != UNREAD, before.heard
    log_speaks = in_log | (known & ~is_over(before.logged_at, second))
    # Since the log was silent, a server has counted: it told later, by more than it had to wait.
    counted = (before.told != UNREAD) & (~known | (before.told.astype(np.int64) - before.logged_at >= HANDOVER_SECONDS))
    handed = known & ~counted
    moved = (before.base != UNREAD) & (base != before.base)
    new_of = [(own == code) & (own != old) for (own, _), (_, old) in zip(beside, before.beside, strict=True)]
    changed = (code != heard_before) & (~moved | np.logical_or.reduce(new_of))
    news = (code != UNREAD) & (code > 0) & (heard_before != UNREAD) & changed & ~log_speaks & ~(handed & (code == before.logged))
    learns = (in_log | ~log_speaks) & (code != UNREAD)
    heard = np.where(learns, code, np.where((heard_before == UNREAD) & seen, 0, heard_before)).astype(np.uint32)
    logged = np.where(in_log & (last_logged != UNREAD), last_logged, before.logged).astype(np.uint32)
    logged_at = np.where(in_log, np.uint32(second), before.logged_at).astype(np.uint32)
    (other, other_code), (third, third_code) = _beside(before, offers, base, heard, in_log)
    return XidState(base, told, heard, logged_at, logged, other, other_code, third, third_code), news, in_log & ~counted


def _beside(before: XidState, offers: Sequence[tuple[Words, Words]], base: Words, heard: Words, in_log: Truths) -> list[tuple[Words, Words]]:
    """Servers beside the one that is followed, each with the code that is not news of it. One that is silent makes room for one that tells."""
    found = [_in_step(before, server, code, offers, heard, in_log) for server, code in before.beside]
    for server, code in found:
        gives_way = server == base
        server[gives_way], code[gives_way] = before.base[gives_way], before.heard[gives_way]
    silent = [_told_by(server, offers) == UNREAD for server, _ in found]
    for offered, basis in offers:
        free = (offered != UNREAD) & (basis != base) & ~np.logical_or.reduce([server == basis for server, _ in found])
        for (server, code), is_silent in zip(found, silent, strict=True):
            taken = free & is_silent
            server[taken], code[taken], is_silent[taken] = basis[taken], offered[taken], False
            free &= ~taken
    return found


def _in_step(
    before: XidState, server: Words, code: Words, offers: Sequence[tuple[Words, Words]], heard: Words, in_log: Truths
) -> tuple[Words, Words]:
    """That server, and the code that is not news of it: its own one where that counted now or a look ago, by whomever, else the one from before.

    A server that was not read while one XID counted may have heard of it or not. After two of them nobody can tell what is news of it: forget it.
    """
    own = _told_by(server, offers)
    counted = (own != UNREAD) & ((own == heard) | (own == before.heard) | in_log)
    lost = (own == UNREAD) & (heard != before.heard) & (code != before.heard)
    return np.where(lost, UNREAD, server), np.where(counted, own, code)


def _told_by(server: Words, offers: Sequence[tuple[Words, Words]]) -> Words:
    found = np.full_like(server, UNREAD)
    for offered, basis in offers:
        found = np.where(basis == server, offered, found)
    return found


def is_over(told: Words, second: int) -> Truths:
    return second - told.astype(np.int64) >= HANDOVER_SECONDS
