"""Raw hardware state, taken from a source and kept as five-minute sums. Healthy hardware costs one row a cluster and nothing more.

Counters may be reset, repeat or go missing: what is kept is what they grew by. A device that was not read in a look keeps its counters, whether its
source left it out or another source wrote the look. What is of the moment alone (flags, levels, processes) is of the newest look or of nobody.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta

import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from dashboards.health.counting import OWN, UNREAD, Counts, Keys, Words, XidState, aligned, followed, grown, is_over, source_of, xids_counted
from dashboards.health.models import HealthBucket, HealthFrame
from dashboards.telemetry.frames import MINUTE, minute_of
from gpufleet.core.times import whole_millis
from scheduler.models import Gpu, Node

BUCKET = timedelta(minutes=5)
# A flag that holds between two looks counts for so long at most: while nobody looked nobody knows.
LONGEST_GAP = timedelta(seconds=60)
MOST_LOGS = 8  # of so many boots and machines it is known up to where their logs were read
KEPT_AGE = 60  # seconds: while a node is heard of more often, its heartbeat is not kept
# Lower levels are not kept: a GPU always has a temperature, and a network always repeats a segment now and then.
KEPT_FROM = {"temperature": 80, "retransmits": 10}


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal, and how five minutes of it come to one figure: what a counter grew by, seconds that a flag held, or the highest level."""

    key: str
    label: str
    kind: str  # counter, flag, level, event
    unit: str
    of_node: bool = False


SIGNALS: dict[str, Signal] = {
    signal.key: signal
    for signal in (
        Signal("thermal", "Thermal throttling", "flag", "s"),
        Signal("power_brake", "Power brake", "flag", "s"),
        Signal("temperature", "Temperature", "level", "°C"),
        Signal("ecc_corrected", "ECC errors, corrected", "counter", "errors"),
        Signal("ecc_uncorrected", "ECC errors, uncorrected", "counter", "errors"),
        Signal("row_remaps", "Memory rows remapped", "counter", "rows"),
        Signal("remap_failed", "Row remap failed", "level", ""),
        Signal("nvlink_errors", "NVLink errors", "counter", "errors"),
        Signal("pcie_replays", "PCIe replays", "counter", "replays"),
        Signal("pcie_lost", "PCIe downgrade", "level", "% of bandwidth lost"),
        Signal("nic_errors", "NIC errors", "counter", "errors", of_node=True),
        Signal("xid", "XIDs", "event", "XIDs"),
        Signal("heartbeat", "Heartbeat age", "age", "s", of_node=True),
        Signal("nic_lost", "NIC speed below nominal", "level", "% of speed lost", of_node=True),
        Signal("retransmits", "TCP retransmissions", "level", "of 10,000 segments", of_node=True),
        Signal("pcie_saturated", "PCIe saturation", "flag", "s"),
    )
}
# Signals that came later: frames of an older version end before them.
LATER = NIC_LOST, RETRANSMITS, PCIE_SATURATED = "nic_lost", "retransmits", "pcie_saturated"
# Of a GPU: compute processes, SM clock in MHz, SM occupancy in percent, traffic of PCIe and NVLink in MiB/s. No health rule is
# about them, and only the newest figure is kept, but for NVLink.
MOMENTARY = PROCESSES, SM_CLOCK, OCCUPANCY, PCIE, NVLINK = "processes", "sm_clock", "sm_occupancy", "pcie_mib", "nvlink_mib"
# NVLink traffic by minute, for stragglers: what the looks of the running minute add up to, how many they are, and the means of whole minutes before
# it, the newest first.
PAST_MINUTES = 6
BY_MINUTE = "nvlink_mib_sum", "nvlink_mib_read", *(f"nvlink_mib_past_{place}" for place in range(1, PAST_MINUTES + 1))
COUNTED = tuple(key for key, signal in SIGNALS.items() if signal.kind == "counter")
# Of each counter what it is based on (its source, and of how many parts it is the sum), and the second in which that told it last.
BASE, TOLD = "_base", "_told"
OF_COUNTERS = tuple(key + suffix for key in COUNTED for suffix in (BASE, TOLD))
OF_XIDS = "xid_base", "xid_told", "xid_heard", "xid_logged_at", "xid_logged", "xid_other", "xid_other_code", "xid_third", "xid_third_code"
# The order in which a frame holds them: a new one comes last, as frames of an older version end before it.
STORED = (
    *(key for key, signal in SIGNALS.items() if signal.kind in ("flag", "level", "counter") and key not in LATER),
    *MOMENTARY,
    *BY_MINUTE,
    *OF_COUNTERS,
    *OF_XIDS,
    *LATER,
)
PLACE = {key: place for place, key in enumerate(STORED)}
_BY_MINUTE = slice(PLACE[BY_MINUTE[0]], PLACE[BY_MINUTE[-1]] + 1)
_XIDS = slice(PLACE[OF_XIDS[0]], PLACE[OF_XIDS[-1]] + 1)
OF_MOMENT = [PLACE[key] for key in (*(key for key, signal in SIGNALS.items() if signal.kind in ("flag", "level")), *MOMENTARY)]
STAYS = np.array([key in COUNTED or key in OF_COUNTERS or key in OF_XIDS for key in STORED])


@dataclass(frozen=True, slots=True)
class RawState:
    """One look at devices. Columns hold the figures of `gpus` (or of `nodes`, for signals of nodes); `UNREAD` where there is none.

    Counters in columns are those of the cluster's own source; what servers count is in `counts`, in the order in which they are asked for.
    """

    gpus: Sequence[int] = ()
    columns: Mapping[str, Sequence[int] | Words] = field(default_factory=dict)
    nodes: Sequence[int] = ()
    node_columns: Mapping[str, Sequence[int] | Words] = field(default_factory=dict)
    xids: Sequence[tuple[int, int]] = ()  # (GPU, number) of those that are new since the last look, whoever tells them
    counts: Sequence[Counts] = ()
    log: "Logged | None" = None
    slow_nics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # Gb/s of ports below their nominal speed, by node


@dataclass(frozen=True, slots=True)
class Logged:
    """XIDs in the kernel log of one machine, old ones too: those in records that are newer than the last look count."""

    boot: str
    booted: datetime
    newest: int  # the number of its newest record
    gpus: Sequence[int]  # of which it would tell
    xids: Sequence[tuple[int, int, int]] = ()  # (GPU, number of the XID, number of its record)


def device_of_gpu(key: int) -> int:
    return 2 * key


def device_of_node(key: int) -> int:
    return 2 * key + 1


def state_write(*, cluster_id: int, at: datetime, source: str, state: RawState) -> bool:
    """Add a look to the running five minutes, and say of the nodes that were seen that they are alive. An older look changes nothing."""
    at = whole_millis(at)
    devices, now = _table(state)
    with transaction.atomic():
        frame = HealthFrame.objects.select_for_update().filter(cluster_id=cluster_id).first()
        if frame is not None and frame.at >= at:
            return False
        if frame is not None:
            devices, now = _with_unread(frame, devices, now)
        bucket, since = _bucket_of(at), at if frame is None else frame.at
        if frame is None:
            frame = HealthFrame(cluster_id=cluster_id, bucket_at=bucket)
            last, sums = np.full_like(now, UNREAD), np.zeros_like(now)
            gap = timedelta(0)
        else:
            last, sums = _aligned(frame, devices)
            gap = min(at - frame.at, LONGEST_GAP)
            if frame.bucket_at != bucket:
                sums[:] = 0
        _choose_sources(last, now, devices, state.counts, int(at.timestamp()))
        new = [*state.xids, *_new_xids(frame, last, now, devices, state, since, at)]
        sums = _added(sums, last, now, round(gap.total_seconds()))
        kept = np.where((now == UNREAD) & STAYS[:, None], last, now)
        kept[_BY_MINUTE] = _by_minute(last[_BY_MINUTE], since, at, now[STORED.index(NVLINK)])
        frame.at, frame.bucket_at, frame.source = at, bucket, source
        frame.devices, frame.last, frame.sums = _packed(devices), _packed(kept), _packed(sums)
        frame.slow_nics = {str(node): dict(ports) for node, ports in sorted(state.slow_nics.items())}
        frame.save()
        _buckets_write(bucket, devices, sums, new)
        if state.nodes:
            Node.objects.filter(pk__in=list(state.nodes), removed_at__isnull=True).update(heartbeat_at=at)
    return True


def _choose_sources(last: Words, now: Words, devices: Keys, counts: Sequence[Counts], second: int) -> None:
    """Leave in `now` of each counter the figures of one source a device, and whose they are."""
    for key in COUNTED:
        place, base, told = PLACE[key], PLACE[key + BASE], PLACE[key + TOLD]
        own = now[place].copy(), np.where(now[base] == UNREAD, 0, now[base]).astype(np.uint32)  # based on the number of its parts
        offers = [*(one.column(key, devices) for one in counts), own]
        now[place], now[base], now[told] = followed(last[base], last[told], offers, second)


def _new_xids(frame: HealthFrame, last: Words, now: Words, devices: Keys, state: RawState, since: datetime, at: datetime) -> list[tuple[int, int]]:
    """(GPU, number) of those XIDs that came since the last look, each once, whoever tells it."""
    log = state.log
    records = [] if log is None else _new_in_log(frame, log, since)
    in_log = np.isin(devices, np.array([device_of_gpu(gpu) for gpu in log.gpus] if log else [], np.uint64))
    codes = aligned({device_of_gpu(gpu): code for gpu, code, _ in log.xids} if log else {}, devices)
    offers = [one.column("xid", devices) for one in state.counts]
    seen = np.isin(devices, np.array(sorted({device for one in state.counts for device in one.devices}), np.uint64))
    after, news, from_log = xids_counted(XidState(*last[_XIDS]), offers, seen, in_log, codes, second=int(at.timestamp()))
    now[_XIDS] = np.array([getattr(after, one.name) for one in fields(after)])
    told = [(int(device) // 2, int(code)) for device, code in zip(devices[news], after.heard[news], strict=True)]
    counts = set((devices[from_log] // 2).tolist())
    return [*told, *((gpu, code) for gpu, code in records if gpu in counts)]


def _new_in_log(frame: HealthFrame, log: Logged, since: datetime) -> list[tuple[int, int]]:
    """Records since the last look. Of a log that was never read none is new, unless its machine was started since."""
    ends = dict(frame.logs)
    before = ends.pop(log.boot, -1 if log.booted > since else log.newest)
    frame.logs = [*ends.items(), (log.boot, max(before, log.newest))][-MOST_LOGS:]
    return [(gpu, code) for gpu, code, number in log.xids if number > before]


def gpus_read(frame: HealthFrame, *, within: timedelta) -> set[int]:
    """GPUs of which the newest look told anything, or of which a counter was told so shortly before."""
    keys = np.frombuffer(zlib.decompress(bytes(frame.devices)), np.uint64)
    last = unpacked(frame.last, len(keys), UNREAD)
    told = last[[PLACE[key + TOLD] for key in COUNTED]]
    since = int(frame.at.timestamp()) - told.astype(np.int64)
    read = (last[OF_MOMENT] != UNREAD).any(axis=0) | ((told != UNREAD) & (since <= within.total_seconds())).any(axis=0)
    return set((keys[read & (keys % 2 == 0)] // 2).tolist())


def sources_followed(frame: HealthFrame) -> dict[str, dict[int, int]]:
    """By counter the sources that count it, with how many devices each; `OWN` of XIDs is the kernel's log. Without those that fell silent."""
    devices = len(zlib.decompress(bytes(frame.devices))) // 8
    last, second = unpacked(frame.last, devices, UNREAD), int(frame.at.timestamp())
    found = {}
    for key in (*COUNTED, "xid"):
        base, told = last[PLACE[key + BASE]], last[PLACE[key + TOLD]]
        whose = np.where((told != UNREAD) & ~is_over(told, second), source_of(base), UNREAD)
        if key == "xid":
            logged_at = last[PLACE["xid_logged_at"]]
            whose = np.where((logged_at != UNREAD) & ~is_over(logged_at, second), OWN, whose)
        sources, counts = np.unique(whose[whose != UNREAD], return_counts=True)
        if len(sources):
            found[key] = dict(zip(sources.tolist(), counts.tolist(), strict=True))
    return found


def _table(state: RawState) -> tuple[Keys, Words]:
    gpus = np.array([device_of_gpu(key) for key in state.gpus], np.uint64)
    nodes = np.array([device_of_node(key) for key in state.nodes], np.uint64)
    # Also GPUs of which the log alone tells: one that has fallen off the bus.
    logged = np.setdiff1d(np.array([device_of_gpu(key) for key in (state.log.gpus if state.log else ())], np.uint64), gpus)
    devices = np.concatenate([gpus, nodes, logged])
    now = np.full((len(STORED), len(devices)), UNREAD, np.uint32)
    for place, key in enumerate(STORED):
        if key in state.columns:
            now[place, : len(gpus)] = np.asarray(state.columns[key], np.uint32)
        if key in state.node_columns:
            now[place, len(gpus) : len(gpus) + len(nodes)] = np.asarray(state.node_columns[key], np.uint32)
    order = np.argsort(devices, kind="stable")
    return devices[order], now[:, order]


def _with_unread(frame: HealthFrame, devices: Keys, now: Words) -> tuple[Keys, Words]:
    """A look with those devices of the last one that are not in it and still are in the inventory."""
    known = np.frombuffer(zlib.decompress(bytes(frame.devices)), np.uint64)
    gone = np.setdiff1d(known, devices)
    if len(gone):
        gpus = Gpu.objects.filter(node__cluster_id=frame.cluster_id, removed_at__isnull=True).values_list("pk", flat=True)
        nodes = Node.objects.filter(cluster_id=frame.cluster_id, removed_at__isnull=True).values_list("pk", flat=True)
        there = [*map(device_of_gpu, gpus), *map(device_of_node, nodes)]
        gone = np.intersect1d(gone, np.array(there, np.uint64))
    if not len(gone):
        return devices, now
    every = np.concatenate([devices, gone])
    order = np.argsort(every, kind="stable")
    return every[order], np.concatenate([now, np.full((len(STORED), len(gone)), UNREAD, np.uint32)], axis=1)[:, order]


def _aligned(frame: HealthFrame, devices: Keys) -> tuple[Words, Words]:
    """What the frame knows, in the order of these devices. New devices are unread until now."""
    known = np.frombuffer(zlib.decompress(bytes(frame.devices)), np.uint64)
    old_last, old_sums = unpacked(frame.last, len(known), UNREAD), unpacked(frame.sums, len(known), np.uint32(0))
    if np.array_equal(known, devices):
        return old_last, old_sums
    last = np.full((len(STORED), len(devices)), UNREAD, np.uint32)
    sums = np.zeros((len(STORED), len(devices)), np.uint32)
    if len(known):
        place = np.minimum(np.searchsorted(known, devices), len(known) - 1)
        same = known[place] == devices
        last[:, same], sums[:, same] = old_last[:, place[same]], old_sums[:, place[same]]
    return last, sums


def _added(sums: Words, last: Words, now: Words, seconds: int) -> Words:
    found = sums.copy()
    for place, key in enumerate(STORED):
        if key not in SIGNALS:
            continue
        read, kind = now[place] != UNREAD, SIGNALS[key].kind
        if kind == "flag":
            found[place] += np.where(read & (now[place] > 0), np.uint32(seconds), np.uint32(0))
        elif kind == "level":
            level = np.where(now[place] >= KEPT_FROM.get(key, 0), now[place], 0)
            found[place] = np.where(read, np.maximum(found[place], level), found[place])
        else:
            base = PLACE[key + BASE]
            found[place] += grown(last[place], last[base], now[place], now[base])
    return found


def _by_minute(known: Words, since: datetime, at: datetime, read: Words) -> Words:
    """NVLink traffic by minute, as of `since`, with a look at `at`."""
    total, looks = np.where(known[:2] == UNREAD, 0, known[:2]).astype(np.uint32)
    past = known[2:]
    passed = min((minute_of(at) - minute_of(since)) // MINUTE, PAST_MINUTES)
    if passed:
        mean = np.where(looks > 0, total // np.maximum(looks, 1), UNREAD)
        unread = np.full((passed - 1, len(mean)), UNREAD, np.uint32)
        past = np.vstack([unread, mean[None], past])[:PAST_MINUTES]
        total, looks = np.zeros_like(total), np.zeros_like(looks)
    there = read != UNREAD
    return np.vstack([total + np.where(there, read, 0), looks + there, past]).astype(np.uint32)


def nvlink_by_minute(frame: HealthFrame, now: datetime) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """GPUs in ascending order, and the MiB/s of each in the last whole minutes before `now`, the oldest first; NaN: not read."""
    keys = np.frombuffer(zlib.decompress(bytes(frame.devices)), np.uint64)
    known = unpacked(frame.last, len(keys), UNREAD)[_BY_MINUTE]
    past = _by_minute(known, frame.at, max(now, frame.at), np.full(len(keys), UNREAD, np.uint32))[2:]
    gpus = keys % 2 == 0
    return (keys[gpus] // 2).astype(np.int64), np.where(past == UNREAD, np.nan, past.astype(np.float64))[::-1, gpus]


def _buckets_write(bucket: datetime, devices: Keys, sums: Words, xids: Sequence[tuple[int, int]]) -> None:
    rows = []
    places, columns = np.nonzero(sums)
    wanted = {int(devices[column]) for column in columns.tolist()} | {device_of_gpu(gpu) for gpu, _ in xids}
    if not wanted:
        return
    gpus = dict(Gpu.objects.filter(pk__in=[device // 2 for device in wanted if device % 2 == 0]).values_list("pk", "node_id"))
    nodes = set(Node.objects.filter(pk__in=[device // 2 for device in wanted if device % 2]).values_list("pk", flat=True))
    for place, column in zip(places.tolist(), columns.tolist(), strict=True):
        made = _bucket(bucket, int(devices[column]), STORED[place], 0, int(sums[place, column]), gpus, nodes)
        rows += [made] if made else []
    counts: dict[tuple[int, int], int] = {}
    for gpu, code in xids:
        counts[gpu, code] = counts.get((gpu, code), 0) + 1
    if counts:
        there = HealthBucket.objects.filter(at=bucket, signal="xid", device__in={device_of_gpu(gpu) for gpu, _ in counts})
        before = {(device // 2, code): value for device, code, value in there.values_list("device", "code", "value")}
        for (gpu, code), count in sorted(counts.items()):
            made = _bucket(bucket, device_of_gpu(gpu), "xid", code, count + before.get((gpu, code), 0), gpus, nodes)
            rows += [made] if made else []
    HealthBucket.objects.bulk_create(
        rows, batch_size=500, update_conflicts=True, unique_fields=["at", "device", "signal", "code"], update_fields=["value"]
    )


def ages_write(*, ages: Mapping[int, int], at: datetime) -> None:
    """Keep how long nodes were silent, by device, so that rules on it can be tried against the past: of each five minutes the longest."""
    bucket = _bucket_of(at)
    silent = {device: age for device, age in ages.items() if age >= KEPT_AGE}
    if not silent:
        return
    there = HealthBucket.objects.filter(at=bucket, signal="heartbeat", device__in=silent).values_list("device", "value")
    for device, value in there:
        silent[device] = max(silent[device], value)
    HealthBucket.objects.bulk_create(
        [HealthBucket(at=bucket, device=device, node_id=device // 2, signal="heartbeat", value=age) for device, age in sorted(silent.items())],
        batch_size=500,
        update_conflicts=True,
        unique_fields=["at", "device", "signal", "code"],
        update_fields=["value"],
    )


def _bucket(at: datetime, device: int, signal: str, code: int, value: int, gpus: Mapping[int, int], nodes: set[int]) -> HealthBucket | None:
    key, is_node = divmod(device, 2)
    node = (key if key in nodes else None) if is_node else gpus.get(key)
    if node is None:
        return None
    return HealthBucket(at=at, device=device, node_id=node, gpu_id=None if is_node else key, signal=signal, code=code, value=value)


def _bucket_of(at: datetime) -> datetime:
    return at.replace(minute=at.minute - at.minute % 5, second=0, microsecond=0)


def _packed(values: Words | Keys) -> bytes:
    return zlib.compress(np.ascontiguousarray(values).tobytes(), 1)


def unpacked(packed: bytes | memoryview, devices: int, missing: np.uint32) -> Words:
    """Figures by signal and device; of signals that the frame's version did not know, `missing`."""
    read = np.frombuffer(zlib.decompress(bytes(packed)), np.uint32)[: len(STORED) * devices]
    found = np.full(len(STORED) * devices, missing, np.uint32)
    found[: len(read)] = read
    return found.reshape(len(STORED), devices)
