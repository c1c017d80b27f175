"""Compares a document with the inventory as it is. Nothing is written here; what can't be done is a fault at its place in the file."""

from typing import Any

from scheduler.engine.model.mig import BOARDS, board_of
from scheduler.imports.documents import Fault, Item
from scheduler.imports.hardware import HardwareComparison
from scheduler.imports.plan import Change, Difference, Plan, differing, stated
from scheduler.imports.present import Present
from scheduler.imports.schema import Document, Wanted, WantedCluster
from scheduler.models import GpuType

__all__ = ["clusters_named", "compare"]


def clusters_named(document: Document) -> set[str]:
    return {*document.clusters, *(cluster for cluster, _ in document.nodes)}


def compare(document: Document, there: Present, *, remove_missing: bool = False) -> Plan:
    """The way from what there is to what the document wants."""
    plan = Plan()
    comparison = _FleetComparison(document, there, plan)
    comparison.types()
    comparison.clusters()
    comparison.places()
    HardwareComparison(document, there, plan, comparison.boards, remove_missing=remove_missing).run()
    return plan


class _FleetComparison:
    """What is not a node: types, clusters, levels, pools, domains."""

    def __init__(self, document: Document, there: Present, plan: Plan) -> None:
        self.document, self.there, self.plan = document, there, plan
        self.levels: dict[str, list[str]] = {}
        self.boards: dict[str, str] = {name: kind.board for name, kind in there.types.items()}

    def fault(self, item: Item, path: str, message: str) -> None:
        self.plan.faults.append(Fault(item.line, item.column, path, message))

    def change(self, kind: str, what: str, name: str, differences: tuple[Difference, ...] = ()) -> None:
        self.plan.changes.append(Change(kind, what, name, differences))

    def types(self) -> None:
        for name, wanted in self.document.types.items():
            present = self.there.types.get(name)
            if present is None:
                self._new_type(name, wanted, wanted.fields.get("memory_mib"))
            elif differences := differing(present, wanted.fields):
                self.plan.changed_types.append((present, wanted.fields))
                self.boards[name] = wanted.fields.get("board", present.board)
                self.change("changed", "GPU type", name, differences)
        for node in self.document.nodes.values():
            self._implied_type(node, node.fields.get("gpu_type"), node.gpu_memory_mib)
            for gpu in (node.gpus or {}).values():
                self._implied_type(gpu, gpu.fields.get("gpu_type"), gpu.fields.get("memory_mib"))

    def _implied_type(self, wanted: Wanted, name: str | None, memory_mib: int | None) -> None:
        """A type that only nodes name comes into being with what they say about it."""
        if name and name not in self.boards:
            self._new_type(name, wanted, memory_mib)

    def _new_type(self, name: str, wanted: Wanted, memory_mib: int | None) -> None:
        board_name = wanted.fields.get("board")
        board = BOARDS.get(board_name) if board_name is not None else board_of(name)
        if memory_mib is None and board is not None:
            memory_mib = board.memory_gb * 1024
        self.boards[name] = board.name if board else ""
        if memory_mib is None and wanted.refused:
            return  # What it says of its memory was refused, and told.
        if memory_mib is None:
            self.fault(wanted.item, f"{wanted.path}.gpu_type", f"the type {name} is new; say its memory with memory_gb under gpu_types")
            return
        kind = GpuType(name=name, board=self.boards[name], memory_mib=memory_mib, hbm_gbps=wanted.fields.get("hbm_gbps") or 0)
        self.plan.new_types.append(kind)
        self.change("added", "GPU type", name, (Difference("memory_mib", None, memory_mib), Difference("board", None, kind.board)))

    def clusters(self) -> None:
        for name, wanted in self.document.clusters.items():
            present = self.there.clusters.get(name)
            if present is None:
                self.plan.new_clusters.append((name, wanted.fields))
                self.change("added", "cluster", name, stated(wanted.fields))
            elif differences := differing(present, wanted.fields):
                self.plan.changed_clusters.append((present, wanted.fields))
                self.change("changed", "cluster", name, differences)
            self._levels(name, wanted)
        for name in self.there.clusters:
            self.levels.setdefault(name, [level.name for level in self.there.levels[name]])
        for (cluster, _), node in self.document.nodes.items():
            if cluster not in self.levels and cluster not in self.document.clusters:
                self.levels[cluster] = []
                self.fault(node.item, f"{node.path}.cluster", f"there is no cluster {cluster}; list it under clusters")

    def _levels(self, name: str, wanted: WantedCluster) -> None:
        present = self.there.levels[name]
        names = [level.name for level in present]
        self.levels[name] = names
        if wanted.levels is None:
            return
        asked = [level.fields["name"] for level in wanted.levels]
        if asked[: len(names)] != names:
            item = wanted.levels[0].item if wanted.levels else wanted.item
            told = f"the levels of {name} are {', '.join(names)}; an import changes their bandwidth and adds narrower ones, but keeps names and order"
            self.fault(item, f"{wanted.path}.levels", told)
            return
        self.levels[name] = asked
        for level, row in zip(wanted.levels, present, strict=False):
            if differences := differing(row, level.fields):
                self.plan.changed_levels.append((row, level.fields))
                self.change("changed", "level", f"{name} {row.name}", differences)
        for depth, level in list(enumerate(wanted.levels))[len(present) :]:
            self.plan.new_levels.append((name, depth, level.fields))
            given = stated({field: value for field, value in level.fields.items() if field != "name"})
            self.change("added", "level", f"{name} {level.fields['name']}", given)

    def places(self) -> None:
        """Pools and domains that clusters list or nodes stand in; what lies above a domain comes with it."""
        pools = {(name, pool) for name, wanted in self.document.clusters.items() for pool in wanted.pools}
        pools |= {(cluster, node.fields["pool"]) for (cluster, _), node in self.document.nodes.items() if node.fields.get("pool")}
        for cluster, pool in sorted(pools - self.there.pools.keys()):
            self.plan.new_pools.append((cluster, pool))
            self.change("added", "pool", f"{cluster} {pool}")
        known = {(cluster, tuple(path.split("/"))) for cluster, path in self.there.domains}
        fields: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
        for name, wanted in self.document.clusters.items():
            for place, domain in wanted.domains.items():
                if self.fits(name, place, domain, "path"):
                    fields[name, place] = domain.fields
                    present = self.there.domains.get((name, "/".join(place)))
                    if present is not None and (differences := differing(present, domain.fields)):
                        self.plan.changed_domains.append((present, domain.fields))
                        self.change("changed", "domain", f"{name} {present.path}", differences)
        for (cluster, _), node in self.document.nodes.items():
            if node.place_levels is not None and node.place is not None:
                self._in_order(cluster, node)
            if node.place and self.fits(cluster, node.place, node, "path"):
                fields.setdefault((cluster, node.place), {})
            elif node.place:
                node.place = None  # The fault is told; nothing else is said about this place.
        new = {(cluster, place[:depth]) for cluster, place in fields for depth in range(1, len(place) + 1)} - known
        for cluster, place in sorted(new):
            self.plan.new_domains.append((cluster, place, fields.get((cluster, place), {})))
            self.change("added", "domain", f"{cluster} {'/'.join(place)}", stated(fields.get((cluster, place), {})))

    def _in_order(self, cluster: str, node: Any) -> None:
        """A place that names its levels, in the order of the cluster's."""
        levels = self.levels.get(cluster, [])
        named = dict(zip(node.place_levels, node.place, strict=True))
        if set(named) == set(levels[: len(named)]):
            node.place = tuple(named[level] for level in levels[: len(named)])
        else:
            node.place = None
            self.fault(node.item, f"{node.path}.path", f"names {', '.join(named)}; the levels of {cluster} are {', '.join(levels) or 'none'}")

    def fits(self, cluster: str, place: tuple[str, ...], wanted: Wanted, name: str) -> bool:
        levels = self.levels.get(cluster, [])
        if len(place) <= len(levels):
            return True
        told = f"“{'/'.join(place)}” is {len(place)} levels deep; {cluster} has {len(levels)}{': ' + ', '.join(levels) if levels else ''}"
        self.fault(wanted.item, f"{wanted.path}.{name}", told)
        return False
