"""The inventory format, version 1: what a file may say, and what it then wants the inventory to be.

A key that is left out keeps what the inventory has; null takes it away where that is possible.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from scheduler.engine.model.mig import BOARDS, Instance
from scheduler.imports.documents import FORMAT, Fault, Item
from scheduler.imports.reading import NAME, SLUG, Section
from scheduler.models import GpuMode, Health

MOST_GPUS = 64
MOST_LETTERS = 63  # of a domain, as of a value of a label in Kubernetes
TOP = ("format", "gpu_types", "clusters", "nodes")
TYPE = ("name", "board", "memory_gb", "memory_mib", "hbm_gbps")
CLUSTER = ("name", "title", "backend", "levels", "pools", "domains")
LEVEL = ("name", "bandwidth_gbps", "oversubscription", "rails")
DOMAIN = ("path", "bandwidth_gbps")
NODE = (
    *("name", "cluster", "pool", "path", "island", "spare", "health", "labels", "nics"),
    *("gpu_type", "gpus", "gpu_memory_gb", "gpu_memory_mib", "uuids", "islands", "unhealthy_gpus", "mig"),
    *("cpus", "host_memory_gb", "host_memory_mib", "pcie_gbps", "nvme_gbps", "attributes"),
)
GPU = ("index", "uuid", "gpu_type", "memory_gb", "memory_mib", "mode", "island", "numa_node", "pcie_generation", "pcie_width", "health")
ATTRIBUTES = ("hbm_gbps", "pcie_gbps", "nvme_gbps")
MIG = ("gpu", "instances")
INSTANCE = ("profile", "start", "uuid")
NIC = ("name", "rail", "speed_gbps")


@dataclass(slots=True)
class Wanted:
    """Something that the file describes. `item` is where, `fields` what it says about it; `refused`: some of that was at fault."""

    item: Item
    path: str
    fields: dict[str, Any] = field(default_factory=dict)
    refused: bool = False


@dataclass(slots=True)
class WantedGpu(Wanted):
    health: str | None = None
    layout: tuple[Instance, ...] | None = None
    instance_uuids: dict[int, str] = field(default_factory=dict)
    layout_item: Item | None = None
    layout_path: str = ""


@dataclass(slots=True)
class WantedNode(Wanted):
    name: str = ""
    cluster: str = ""
    place: tuple[str, ...] | None = None
    place_levels: tuple[str, ...] | None = None
    health: str | None = None
    gpu_memory_mib: int | None = None
    gpus: dict[int, WantedGpu] | None = None
    nics: dict[str, Wanted] | None = None


@dataclass(slots=True)
class WantedCluster(Wanted):
    levels: list[Wanted] | None = None
    pools: list[str] = field(default_factory=list)
    domains: dict[tuple[str, ...], Wanted] = field(default_factory=dict)


@dataclass(slots=True)
class Document:
    """The whole file, read. It is only complete where `faults` is empty."""

    types: dict[str, Wanted] = field(default_factory=dict)
    clusters: dict[str, WantedCluster] = field(default_factory=dict)
    nodes: dict[tuple[str, str], WantedNode] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def read_document(root: Item, faults: Iterable[Fault] = ()) -> Document:
    """What the file wants. Everything that is wrong in it is in `faults`."""
    document = Document(faults=list(faults))
    top = Section(document.faults, root, "", TOP)
    top.choice("format", [FORMAT])
    if root.kind == "map" and not root.entries:
        top.fault(root, "", "says nothing; it should hold gpu_types, clusters or nodes")
    for path, item in top.list("gpu_types"):
        _read_type(document, top.inner(item, path, TYPE, ("name",)))
    for path, item in top.list("clusters"):
        _read_cluster(document, top.inner(item, path, CLUSTER, ("name",)))
    for path, item in top.list("nodes"):
        NodeReader(document, top.inner(item, path, NODE, ("name", "cluster"))).read()
    return document


def _once(section: Section, taken: dict[Any, Any], key: Any, what: str) -> bool:
    """Whether the key is new; a second one is a fault that names the first's line."""
    if key not in taken:
        return True
    section.fault(section.value("name") or section.item, "", f"the {what} is there twice; the first is in line {taken[key].item.line}")
    return False


def _memory(section: Section, name: str) -> int | None:
    """Memory in MiB, from `…_gb` (1024 MiB each) or exactly from `…_mib`."""
    gigabytes, exact = section.number(f"{name}_gb", least=0.001, most=1_000_000), section.whole(f"{name}_mib", least=1)
    if section.given(f"{name}_gb") and section.given(f"{name}_mib"):
        section.fault(section.entries[f"{name}_mib"][0], f"{name}_mib", f"says the same as {name}_gb; leave one out")
    return exact if exact is not None else round(gigabytes * 1024) if gigabytes is not None else None


def _read_type(document: Document, section: Section) -> None:
    before = len(section.faults)
    name = section.text("name", longest=60)
    wanted = Wanted(section.item, section.path)
    board = section.choice("board", BOARDS)
    section.take(wanted.fields, "board", board, empty="")
    memory = _memory(section, "memory")
    if memory is not None:
        wanted.fields["memory_mib"] = memory
    section.take(wanted.fields, "hbm_gbps", section.whole("hbm_gbps"), empty=0)
    wanted.refused = len(section.faults) > before
    if name and _once(section, document.types, name, f"GPU type {name}"):
        document.types[name] = wanted


def _read_cluster(document: Document, section: Section) -> None:
    name = section.text("name", longest=60, pattern=SLUG)
    wanted = WantedCluster(section.item, section.path)
    section.take(wanted.fields, "title", section.text("title", longest=120), empty="")
    section.take(wanted.fields, "backend", section.text("backend", longest=20, pattern=SLUG), empty="simulated")
    if section.given("levels"):
        wanted.levels = []
        for path, item in section.list("levels"):
            _read_level(section, wanted.levels, item, path)
    for path, item in section.list("pools"):
        pool = Section(section.faults, Item(item.line, item.column, "map", entries={"name": (item, item)}), f"{section.path}.{path}", ("name",))
        if (text := pool.text("name", longest=60, pattern=SLUG)) is not None:
            wanted.pools.append(text)
    for path, item in section.list("domains"):
        inner = section.inner(item, path, DOMAIN, ("path",))
        place = read_place(inner, "path")
        domain = Wanted(item, inner.path)
        inner.take(domain.fields, "bandwidth_gbps", inner.whole("bandwidth_gbps", most=1_000_000))
        if place is not None:
            wanted.domains[place] = domain
    if name and _once(section, document.clusters, name, f"cluster {name}"):
        document.clusters[name] = wanted


def _read_level(section: Section, levels: list[Wanted], item: Item, path: str) -> None:
    if item.kind == "text":  # a level of which only the name is known
        item = Item(item.line, item.column, "map", entries={"name": (item, item)})
    inner = section.inner(item, path, LEVEL, ("name",))
    wanted = Wanted(item, inner.path)
    name = inner.text("name", longest=40, pattern=SLUG)
    if name and any(level.fields["name"] == name for level in levels):
        inner.fault(item, "name", f"the level {name} is there twice")
    wanted.fields["name"] = name or ""
    inner.take(wanted.fields, "bandwidth_gbps", inner.whole("bandwidth_gbps", most=1_000_000))
    ratio = inner.number("oversubscription", least=0.01, most=1000)
    inner.take(wanted.fields, "oversubscription", None if ratio is None else round(ratio * 100), to="oversubscription_centi", empty=100)
    inner.take(wanted.fields, "rails", inner.truth("rails"), to="is_rail_level", empty=False)
    levels.append(wanted)


def read_place(section: Section, name: str) -> tuple[str, ...] | None:
    """`s1/l1` as a tuple of names."""
    text = section.text(name, longest=400)
    if text is None:
        return None
    names = tuple(text.split("/"))
    if not all(NAME.fullmatch(part) and len(part) <= MOST_LETTERS for part in names):
        item = section.value(name)
        assert item is not None, "it has a text"
        section.fault(item, name, f"“{text[:60]}” must be names with slashes between, as in spine-1/leaf-2")
        return None
    return names


class NodeReader:
    """Reads one node with its GPUs and ports."""

    def __init__(self, document: Document, section: Section) -> None:
        self.document, self.section = document, section
        self.node = WantedNode(section.item, section.path)

    def read(self) -> None:
        section, node, fields = self.section, self.node, self.node.fields
        node.name = section.text("name", longest=120, pattern=NAME) or ""
        node.cluster = section.text("cluster", longest=60, pattern=SLUG) or ""
        section.take(fields, "pool", section.text("pool", longest=60, pattern=SLUG))
        section.take(fields, "gpu_type", section.text("gpu_type", longest=60))
        section.take(fields, "island", section.text("island", longest=120), empty="")
        section.take(fields, "spare", section.truth("spare"), empty=False)
        section.take(fields, "cpus", section.whole("cpus", most=100_000), empty=0)
        memory = _memory(section, "host_memory")
        if memory is not None:
            fields["host_memory_mib"] = memory
        for name in ("pcie_gbps", "nvme_gbps"):
            section.take(fields, name, section.whole(name, most=1_000_000))
        if (attributes := section.section("attributes", ATTRIBUTES)) is not None:
            for name in ATTRIBUTES:
                attributes.take(fields, name, attributes.whole(name, most=1_000_000))
        fields.pop("hbm_gbps", None)  # a fact of the type, which the scenario format repeats on nodes
        self._place()
        self._labels()
        node.health = section.choice("health", Health.values)
        node.gpu_memory_mib = _memory(section, "gpu_memory")
        self._gpus()
        self._ports()
        key = (node.cluster, node.name)
        if all(key) and _once(section, self.document.nodes, key, f"node {node.name} of {node.cluster}"):
            self.document.nodes[key] = node

    def _place(self) -> None:
        item = self.section.value("path")
        if item is None:
            if self.section.given("path"):
                self.node.place = ()
        elif item.kind == "map":
            levels = Section(self.section.faults, item, f"{self.section.path}.path", item.entries)
            names = [levels.text(level, longest=MOST_LETTERS, pattern=NAME) for level in item.entries]
            if all(names):
                self.node.place, self.node.place_levels = tuple(name for name in names if name), tuple(item.entries)
        else:
            self.node.place = read_place(self.section, "path")

    def _labels(self) -> None:
        item = self.section.value("labels")
        if item is None:
            if self.section.given("labels"):
                self.node.fields["labels"] = {}
            return
        if item.kind != "map":
            self.section.fault(item, "labels", "must be a map of names and texts")
            return
        labels = Section(self.section.faults, item, f"{self.section.path}.labels", item.entries)
        self.node.fields["labels"] = {name: labels.text(name, longest=120) or "" for name in item.entries}

    def _gpus(self) -> None:
        item = self.section.value("gpus")
        if item is None:
            for name in ("uuids", "islands", "mig", "unhealthy_gpus"):
                if self.section.value(name) is not None:
                    self.section.fault(self.section.entries[name][0], name, "needs gpus beside it")
            return
        gpus: dict[int, WantedGpu] = {}
        self.node.gpus = gpus
        if item.kind == "list":
            for path, entry in self.section.list("gpus"):
                self._gpu(self.section.inner(entry, path, GPU, ("index",)), gpus)
        else:
            count = self.section.whole("gpus", most=MOST_GPUS)
            gpus.update({index: WantedGpu(item, f"{self.section.path}.gpus") for index in range(count or 0)})
            if count is None:
                return  # The count was refused; what hangs on it would only repeat that.
        self._uuids(gpus)
        self._islands(gpus)
        for path, entry in self.section.list("unhealthy_gpus"):
            if (gpu := self._gpu_at(entry, path, gpus)) is not None:
                gpu.health = Health.DOWN
        self._mig(gpus)

    def _gpu(self, section: Section, gpus: dict[int, WantedGpu]) -> None:
        index = section.whole("index", most=MOST_GPUS - 1)
        gpu = WantedGpu(section.item, section.path)
        section.take(gpu.fields, "uuid", section.text("uuid", longest=80), empty="")
        section.take(gpu.fields, "gpu_type", section.text("gpu_type", longest=60))
        if gpu.fields.get("gpu_type", "") is None:
            section.fault(section.item, "gpu_type", "can't be nothing")
        if (memory := _memory(section, "memory")) is not None:
            gpu.fields["memory_mib"] = memory
        section.take(gpu.fields, "mode", section.choice("mode", GpuMode.values), empty=GpuMode.WHOLE)
        section.take(gpu.fields, "island", section.text("island", longest=120), empty="")
        for name, most in (("numa_node", 1023), ("pcie_generation", 20), ("pcie_width", 64)):
            section.take(gpu.fields, name, section.whole(name, most=most))
        gpu.health = section.choice("health", Health.values)
        if index is None:
            return
        if index in gpus:
            section.fault(section.item, "index", f"GPU {index} is there twice; the first is in line {gpus[index].item.line}")
        gpus[index] = gpu

    def _gpu_at(self, item: Item, path: str, gpus: dict[int, WantedGpu]) -> WantedGpu | None:
        index = self.section.whole_of(item, path, most=MOST_GPUS - 1)
        if index is None or index in gpus:
            return gpus.get(index) if index is not None else None
        self.section.fault(item, path, f"there is no GPU {index}; this node has {self._indices(gpus)}")
        return None

    def _indices(self, gpus: dict[int, WantedGpu]) -> str:
        return f"{min(gpus)} to {max(gpus)}" if gpus else "none"

    def _uuids(self, gpus: dict[int, WantedGpu]) -> None:
        found = list(self.section.list("uuids"))
        if found and len(found) != len(gpus):
            self.section.fault(self.section.entries["uuids"][1], "uuids", f"names {len(found)}; this node has {len(gpus)} GPUs")
        for index, (path, item) in zip(sorted(gpus), found, strict=False):
            if item.kind != "text" or not item.text or len(item.text) > 80:
                self.section.fault(item, path, "must be a text of at most 80 characters")
            else:
                gpus[index].fields["uuid"] = item.text

    def _islands(self, gpus: dict[int, WantedGpu]) -> None:
        taken: dict[int, int] = {}
        for number, (path, item) in enumerate(self.section.list("islands")):
            if item.kind != "list":
                self.section.fault(item, path, "must be a list of GPU indices")
                continue
            for entry in item.items:
                gpu = self._gpu_at(entry, path, gpus)
                if gpu is None:
                    continue
                index = int(entry.text)
                if index in taken:
                    self.section.fault(entry, path, f"GPU {index} is in island {taken[index]} already")
                taken[index] = number
                gpu.fields["island"] = f"island-{number}"

    def _mig(self, gpus: dict[int, WantedGpu]) -> None:
        for path, item in self.section.list("mig"):
            section = self.section.inner(item, path, MIG, ("gpu", "instances"))
            entry = section.value("gpu")
            gpu = self._gpu_at(entry, f"{path}.gpu", gpus) if entry is not None else None
            layout: list[Instance] = []
            uuids: dict[int, str] = {}
            before = len(section.faults)
            for inner_path, inner in section.list("instances"):
                part = section.inner(inner, inner_path, INSTANCE, ("profile", "start"))
                profile, start, uuid = part.text("profile", longest=30), part.whole("start", most=15), part.text("uuid", longest=80)
                if profile is not None and start is not None:
                    layout.append(Instance(start, profile))
                    if uuid:
                        uuids[start] = uuid
            if gpu is None or len(section.faults) > before:
                continue
            if gpu.layout is not None:
                section.fault(item, "gpu", "this GPU's split is there twice")
            gpu.layout, gpu.instance_uuids, gpu.layout_item, gpu.layout_path = tuple(sorted(layout)), uuids, item, section.path
            gpu.fields["mode"] = GpuMode.MIG

    def _ports(self) -> None:
        if not self.section.given("nics"):
            return
        self.node.nics = {}
        for path, item in self.section.list("nics"):
            section = self.section.inner(item, path, NIC, ("name", "speed_gbps"))
            name = section.text("name", longest=40)
            port = Wanted(item, section.path)
            section.take(port.fields, "rail", section.whole("rail", most=1023))
            section.take(port.fields, "speed_gbps", section.whole("speed_gbps", least=1, most=100_000))
            if name and _once(section, self.node.nics, name, f"port {name}"):
                self.node.nics[name] = port
