"""Compares nodes, their GPUs with how they are split, and their ports."""

from collections.abc import Mapping
from typing import Any

from scheduler.engine.model.mig import BOARDS, Instance, layout_faults
from scheduler.imports.documents import Fault, Item
from scheduler.imports.plan import Change, ChangedGpu, ChangedNode, Difference, NewGpu, NewNode, NodeKey, Plan, differing, stated
from scheduler.imports.present import Present
from scheduler.imports.schema import Document, WantedGpu, WantedNode
from scheduler.models import Gpu, GpuMode, Health, Node
from scheduler.services.hardware.geometry import geometry_of, layout_text

# Changes to these decide where work fits; what runs stays, and the preview says so.
_PLACEMENT = frozenset({"path", "spare", "gpu_type", "island", "pool"})


class HardwareComparison:
    def __init__(
        self,
        document: Document,
        there: Present,
        plan: Plan,
        boards: Mapping[str, str],
        *,
        remove_missing: bool,
    ) -> None:
        self.document, self.there, self.plan, self.boards = document, there, plan, boards
        self.remove_missing = remove_missing
        self.uuids: dict[str, tuple[WantedGpu, int | None]] = {}

    def run(self) -> None:
        for key, wanted in self.document.nodes.items():
            node = self.there.nodes.get(key)
            if node is None:
                self._new_node(key, wanted)
            else:
                self._node(key, node, wanted)
        named = {cluster for cluster, _ in self.document.nodes}
        for key, node in self.there.nodes.items():
            if key[0] in named and key not in self.document.nodes:
                self._missing_node(key, node)
        self._check_uuids()

    def _fault(self, item: Item, path: str, message: str) -> None:
        self.plan.faults.append(Fault(item.line, item.column, path, message))

    def _change(
        self,
        kind: str,
        what: str,
        key: NodeKey,
        name: str = "",
        differences: tuple[Difference, ...] = (),
        notes: tuple[str, ...] = (),
        gpu: Any = None,
    ) -> None:
        self.plan.changes.append(Change(kind, what, f"{key[0]}/{key[1]}{f' {name}' if name else ''}", differences, notes, key, gpu))

    # Nodes

    def _new_node(self, key: NodeKey, wanted: WantedNode) -> None:
        fields = {name: value for name, value in wanted.fields.items() if name not in ("pool", "gpu_type")}
        fields["gpu_type_id"] = wanted.fields.get("gpu_type")
        if wanted.health is not None:
            fields["health"] = wanted.health
        place = "/".join(wanted.place) if wanted.place else None
        self.plan.new_nodes.append(NewNode(key, wanted.fields.get("pool"), place, fields))
        gpus, nics = wanted.gpus or {}, wanted.nics or {}
        shown = {"gpu_type": wanted.fields.get("gpu_type"), "gpus": len(gpus), "nics": len(nics), "path": place, **wanted.fields}
        told = stated({name: value for name, value in shown.items() if value != 0})
        self._change("added", "node", key, "", told, self._split_notes(gpus))
        for index, gpu in sorted(gpus.items()):
            self._new_gpu(key, wanted, index, gpu)
        for name, port in sorted(nics.items()):
            self.plan.new_nics.append((key, name, port.fields))

    def _split_notes(self, gpus: Mapping[int, WantedGpu]) -> tuple[str, ...]:
        return tuple(f"GPU {index}: {layout_text(gpu.layout)}" for index, gpu in sorted(gpus.items()) if gpu.layout)

    def _node(self, key: NodeKey, node: Node, wanted: WantedNode) -> None:
        plain = {name: value for name, value in wanted.fields.items() if name not in ("pool", "gpu_type")}
        differences = list(differing(node, plain))
        moves: dict[str, str | None] = {}
        if "gpu_type" in wanted.fields and wanted.fields["gpu_type"] != node.gpu_type_id:
            differences.append(Difference("gpu_type", node.gpu_type_id, wanted.fields["gpu_type"]))
            plain["gpu_type_id"] = wanted.fields["gpu_type"]
        pool = node.pool.name if node.pool else None
        if "pool" in wanted.fields and wanted.fields["pool"] != pool:
            differences.append(Difference("pool", pool, wanted.fields["pool"]))
            moves["pool"] = wanted.fields["pool"]
        place, path = "/".join(wanted.place or ()) or None, node.domain.path if node.domain else None
        if wanted.place is not None and place != path:
            differences.append(Difference("path", path, place))
            moves["path"] = place
        if differences:
            jobs = len(self.there.jobs_on_node.get(node.pk, ()))
            affected = jobs and any(difference.field in _PLACEMENT for difference in differences)
            notes = (f"{_jobs(jobs)}, which this does not move",)
            self.plan.changed_nodes.append(ChangedNode(node, plain, moves, key))
            self._change("changed", "node", key, "", tuple(differences), notes if affected else ())
        self._health(key, node, wanted, "")
        if wanted.gpus is not None:
            self._gpus(key, node, wanted, wanted.gpus)
        if wanted.nics is not None:
            self._nics(key, node, wanted)

    def _health(self, key: NodeKey, present: Node | Gpu, wanted: WantedNode | WantedGpu, name: str) -> None:
        """Health is an operator's decision with a reason: a file that says another one is told so, and changes nothing."""
        if wanted.health is not None and wanted.health != present.health:
            note = f"stays {Health(present.health).label.lower()}: health is changed on its page, with a reason"
            self._change("kept", "GPU" if name else "node", key, name, notes=(note,))

    def _missing_node(self, key: NodeKey, node: Node) -> None:
        jobs = len(self.there.jobs_on_node.get(node.pk, ()))
        if not self.remove_missing:
            self._change("kept", "node", key, notes=("the file does not name it",))
        elif jobs:
            self._change("kept", "node", key, notes=(f"{_jobs(jobs)}; drain it first",))
        else:
            self.plan.gone_nodes.append(node)
            gpus = len(self.there.gpus.get(node.pk, ()))
            self._change("removed", "node", key, notes=(f"with {gpus} GPU{'' if gpus == 1 else 's'}; its history stays",))

    # GPUs

    def _wanted_fields(self, node: WantedNode, gpu: WantedGpu) -> dict[str, Any]:
        fields = dict(gpu.fields)
        kind = fields.pop("gpu_type", None) or node.fields.get("gpu_type")
        if kind is not None:
            fields["gpu_type_id"] = kind
        if node.gpu_memory_mib is not None:
            fields.setdefault("memory_mib", node.gpu_memory_mib)
        return fields

    def _new_gpu(self, key: NodeKey, node: WantedNode, index: int, wanted: WantedGpu, kind: str | None = None) -> None:
        fields = self._wanted_fields(node, wanted)
        fields.setdefault("gpu_type_id", kind)
        if fields["gpu_type_id"] is None:
            self._fault(wanted.item, f"{node.path}.gpu_type", "is missing: this node has GPUs")
            return
        if fields["gpu_type_id"] not in self.boards:
            return  # The type itself is at fault, which was told.
        if wanted.health is not None:
            fields["health"] = wanted.health
        self._claim_uuid(wanted, None)
        if wanted.layout is not None:
            self._check_layout(wanted, self.boards[fields["gpu_type_id"]])
        self.plan.new_gpus.append(NewGpu(key, index, fields, wanted.layout or (), wanted.instance_uuids))

    def _gpus(self, key: NodeKey, node: Node, wanted: WantedNode, gpus: Mapping[int, WantedGpu]) -> None:
        present = self.there.gpus.get(node.pk, {})
        for index, gpu in sorted(gpus.items()):
            if index in present:
                self._gpu(key, wanted, present[index], gpu)
            else:
                self._new_gpu(key, wanted, index, gpu, node.gpu_type_id)
                self._change("added", "GPU", key, f"GPU {index}", gpu=index)
        for index in sorted(present.keys() - gpus.keys()):
            gone = present[index]
            if self.remove_missing and gone.pk not in self.there.held_gpus:
                self.plan.gone_gpus.append(gone)
                self._change("removed", "GPU", key, f"GPU {index}", notes=("its history stays",), gpu=index)
            else:
                why = "it is in use; drain it first" if self.remove_missing else "the file does not name it"
                self._change("kept", "GPU", key, f"GPU {index}", notes=(why,), gpu=index)

    def _gpu(self, key: NodeKey, node: WantedNode, present: Gpu, wanted: WantedGpu) -> None:
        fields = self._wanted_fields(node, wanted)
        self._claim_uuid(wanted, present.pk)
        self._health(key, present, wanted, f"GPU {present.index}")
        mode = fields.get("mode", present.mode)
        instances = self.there.instances.get(present.pk, [])
        layout = wanted.layout if wanted.layout is not None else (() if instances and mode != GpuMode.MIG else None)
        differences = [Difference(change.field.removesuffix("_id"), change.before, change.after) for change in differing(present, fields)]
        before = tuple(geometry_of(instances))
        if layout is not None and layout != before:
            differences.append(Difference("split", layout_text(before), layout_text(layout)))
            self._check_unused(wanted, present, layout)
        else:
            layout = None
        if wanted.layout:
            self._check_layout(wanted, self.boards.get(fields.get("gpu_type_id", present.gpu_type_id), ""))
        if mode != present.mode and present.pk in self.there.held_gpus:
            self._fault(wanted.item, f"{wanted.path}.mode", f"GPU {present.index} is in use; its mode can change once nothing runs there")
        if differences:
            self.plan.changed_gpus.append(ChangedGpu(present, fields, layout, wanted.instance_uuids))
            self._change("changed", "GPU", key, f"GPU {present.index}", tuple(differences), gpu=present.index)

    def _claim_uuid(self, wanted: WantedGpu, pk: int | None) -> None:
        uuid = wanted.fields.get("uuid")
        if not uuid:
            return
        if uuid in self.uuids:
            self._fault(wanted.item, f"{wanted.path}.uuid", f"{uuid} is there twice; the first is in line {self.uuids[uuid][0].item.line}")
        self.uuids.setdefault(uuid, (wanted, pk))

    def _check_uuids(self) -> None:
        """A board that moves leaves its old place in the same import, so this can only be told at the end."""
        freed = {gone.pk for gone in self.plan.gone_gpus}
        freed |= {gpu.pk for node in self.plan.gone_nodes for gpu in self.there.gpus.get(node.pk, {}).values()}
        freed |= {changed.gpu.pk for changed in self.plan.changed_gpus if changed.fields.get("uuid", changed.gpu.uuid) != changed.gpu.uuid}
        for uuid, (wanted, pk) in self.uuids.items():
            owner = self.there.uuids.get(uuid)
            if owner is not None and owner != pk and owner not in freed:
                self._fault(wanted.item, f"{wanted.path}.uuid", f"{uuid} belongs to another GPU of the inventory")

    def _check_layout(self, wanted: WantedGpu, board_name: str) -> None:
        board = BOARDS.get(board_name)
        item = wanted.layout_item or wanted.item
        if board is None:
            self._fault(item, wanted.layout_path or wanted.path, "this type of GPU can't be split: it names no board of the MIG catalogue")
            return
        for fault in layout_faults(board, wanted.layout or ()):
            self._fault(item, wanted.layout_path or wanted.path, fault)

    def _check_unused(self, wanted: WantedGpu, present: Gpu, layout: tuple[Instance, ...]) -> None:
        for instance in self.there.instances.get(present.pk, []):
            if instance.pk in self.there.held_instances and Instance(instance.start, instance.profile) not in layout:
                item = wanted.layout_item or wanted.item
                self._fault(item, wanted.layout_path or wanted.path, f"{instance.profile} at slice {instance.start} is in use; it has to stay")

    # Ports

    def _nics(self, key: NodeKey, node: Node, wanted: WantedNode) -> None:
        present = self.there.nics.get(node.pk, {})
        ports = wanted.nics or {}
        for name, port in sorted(ports.items()):
            if name not in present:
                self.plan.new_nics.append((key, name, port.fields))
                self._change("added", "port", key, name, stated(port.fields))
            elif differences := differing(present[name], port.fields):
                self.plan.changed_nics.append((present[name], port.fields))
                self._change("changed", "port", key, name, differences)
        for name in sorted(present.keys() - ports.keys()):
            if self.remove_missing:
                self.plan.gone_nics.append(present[name])
                self._change("removed", "port", key, name)
            else:
                self._change("kept", "port", key, name, notes=("the file does not name it",))


def _jobs(count: int) -> str:
    return f"{count} running job{'' if count == 1 else 's'}"
