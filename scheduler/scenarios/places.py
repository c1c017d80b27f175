"""Where the jobs of a scenario stand: no two may hold the same, and a split GPU holds only what it can."""

from collections.abc import Collection, Sequence
from typing import Any

from scheduler.engine.model.mig import board_of, layout_faults
from scheduler.engine.model.values import Instance, Kind, Node, Placed, Role, Run, has_lapsed, new_placed, new_run
from scheduler.engine.state.fleet import bits_of

from .checkers import GIGABYTES, SHARE, TEXT, whole
from .faults import Bad, short
from .fields import Codec, Field, Table
from .nodes import INSTANCE, INSTANCES, MASK

WORKER = Table(
    {
        "role": Field("role", TEXT, None),
        "index": Field("index", whole(), 0),
        "node": Field("node", TEXT),
        "gpus": Field("gpus", MASK),
        "gpu_share": Field("share_milli", SHARE, None),
        "gpu_memory_gb": Field("memory_mib", GIGABYTES, None),
        "mig": Field("instances", Codec(lambda value: INSTANCES.read(value) if type(value) is list else (INSTANCE.read(value),)), None),
    }
)


class Places:
    """The nodes, and who holds what on them as far as it was read."""

    def __init__(self, nodes: Sequence[Node], named_nodes: Collection[str], now: int) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.faulty_nodes = {name for name in named_nodes if name not in self.nodes}
        self.now = now
        self.held, self.going = Occupancy("is also held by"), Occupancy("is also being left by")

    def run(self, stated: dict[str, Any], kind: Kind, job: Any) -> Run:
        """Where a job stands."""
        bad, job = Bad(), job if type(job) is str else "?"
        stands, leaves = stated.pop("stands"), stated.pop("leaves")
        state = stated["state"]
        leaving = self.workers(leaves, kind, "leaving", self.going, job, bad)
        lapsed = has_lapsed(state, stated["until"], self.now)
        # What was promised until a moment that has come may be somebody else's by now.
        occupancy = self.going if state == "stopping" else Occupancy(self.held.message) if lapsed else self.held
        workers = self.workers(stands, kind, "workers", occupancy, job, bad, promised=state == "reserved" or lapsed or bool(leaving))
        if state == "queued" and (workers or leaving):
            bad.add("a queued job has none", "workers")
        if state in ("reserved", "starting", "running") and not stands:
            bad.add(f"a {state} job has some", "workers")
        bad.raise_if_any()
        run = new_run(**stated, workers=workers, leaving=leaving)
        return run.given_up() if lapsed else run

    def workers(
        self, rows: Sequence[Any], kind: Kind, key: str, occupancy: "Occupancy", job: str, bad: Bad, *, promised: bool = False
    ) -> tuple[Placed, ...]:
        """`promised`: nobody is there yet, and a GPU may still have to be split anew for it."""
        placed: dict[tuple[int, int], Placed] = {}
        for place, row in enumerate(rows):
            try:
                worker = self.worker(row, kind)
                if worker is None:
                    continue
                if (worker.role, worker.index) in placed:
                    bad.add(f"worker {worker.index} of this role is named twice", key, place, "index")
                placed[worker.role, worker.index] = worker
                occupancy.take(self.nodes[worker.node], worker, job, promised=promised)
            except Bad as wrong:
                bad.note(wrong, key, place)
        return tuple(placed[at] for at in sorted(placed))

    def worker(self, raw: Any, kind: Kind) -> Placed | None:
        """None on a faulty node: its fault is told where it is."""
        named, index, name, mask, share, memory, instances = WORKER.read(raw).values()
        if name in self.faulty_nodes:
            return None
        place, role = next(((place, role) for place, role in enumerate(kind.roles) if named in (None, role.name)), (0, None))
        if role is None:
            raise Bad(f"{short(named)} is not one of the job's: {', '.join(sorted(one.name for one in kind.roles))}", "role")
        if index >= role.most:
            raise Bad(f"must be between 0 and {role.most - 1}, not {index}", "index")
        node = self.nodes.get(name)
        if node is None:
            raise Bad(f"{short(name)} is not in this scenario", "node")
        if mask >> node.gpus:
            raise Bad(f"names a GPU beyond the node's {node.gpus}", "gpus")
        count, asked = mask.bit_count(), role.devices if role.parted else role.gpus
        if count != asked:
            raise Bad(f"holds {'parts of ' if role.parted else ''}{count} GPUs; its role asks for {asked}", "gpus")
        if kind.sharing == "mig" and role.parted:
            return new_placed(place, index, name, mask, mig=_instances(role, node, raw["gpus"], instances or ()))
        if instances is not None or (not role.parted and not share is memory is None):
            raise Bad(f"holds {'an instance' if instances else 'a part'}, but its role asks for {'a share' if role.parted else 'whole GPUs'}")
        if share not in (None, role.share_milli or share):
            raise Bad(f"must be the role's, {(role.share_milli or 0) / 1000}", "gpu_share")
        return new_placed(place, index, name, mask, role.part_milli(node.gpu_memory_mib) if role.parted else None)


def _instances(role: Role, node: Node, gpus: list[int], instances: Sequence[Instance]) -> tuple[tuple[int, str, int], ...]:
    board = board_of(node.gpu_type)
    if board is None:
        raise Bad(f"{node.gpu_type} can't be split by MIG")
    if len(instances) != len(gpus):
        raise Bad("must hold one {profile, start} per GPU", "mig")
    for one in instances:
        for fault in layout_faults(board, [one]):
            raise Bad(fault, "mig")
        profile = board.known(one.profile)
        if role.mig not in (None, profile.name):
            raise Bad(f"holds {profile.name}; its role asks for {role.mig}", "mig")
        if profile.usable_mib < (role.memory_mib or 0):
            raise Bad(f"{profile.name} has {profile.usable_mib} MiB; its role asks for {role.memory_mib}", "mig")
    return tuple((gpu, one.profile, one.start) for gpu, one in zip(gpus, instances, strict=True))


class Occupancy:
    """Who holds what, to find two that hold the same."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.masks: dict[str, int] = {}
        self.holders: dict[str, list[tuple[str, Placed]]] = {}

    def take(self, node: Node, worker: Placed, job: str, *, promised: bool) -> None:
        """Note a place, and what is wrong with it."""
        bad, taken, held = Bad(), self.masks.get(node.name, 0), self.holders.setdefault(node.name, [])
        for gpu in bits_of(worker.gpus if is_part(worker) else worker.gpus & (taken | node.split)):
            here = [(other, one) for other, one in held if one.gpus >> gpu & 1]
            self.check(node, gpu, worker, here, bad, promised=promised)
        self.masks[node.name] = taken | worker.gpus
        held.append((job, worker))
        bad.raise_if_any()

    def check(self, node: Node, gpu: int, worker: Placed, here: Sequence[tuple[str, Placed]], bad: Bad, *, promised: bool) -> None:
        """What is wrong with it on one GPU, beside those who hold of it as well."""
        whole = next((other for other, one in here if not (is_part(one) and is_part(worker))), None)
        parts = [*(one for _, one in here), worker]
        at = f"GPU {gpu} of {node.name}"
        if whole is not None:
            bad.add(f"{at} {self.message} {short(whole)}", "gpus")
        elif any(bool(one.mig) != bool(worker.mig) for one in parts):
            bad.add(f"{at} is in one mode at a time: MIG or shared", "gpus")
        elif worker.mig:
            board = board_of(node.gpu_type)
            assert board is not None
            instances = [Instance(start, profile) for one in parts for there, profile, start in one.mig if there == gpu]
            for message in layout_faults(board, instances):
                bad.add(f"{at}: {message}", "mig")
            mine = instances[-1]
            if not promised and mine not in dict(node.mig).get(gpu, ()):
                bad.add(f"{at} has no instance {mine.profile} at {mine.start}", "mig")
        elif node.split >> gpu & 1 and not promised:
            bad.add(f"{at} is in MIG mode and can't be {'shared otherwise' if is_part(worker) else 'held whole'}", "gpus")
        elif sum(one.share_milli or 0 for one in parts) > 1000:
            bad.add(f"{at} is shared out beyond the whole", "gpus")


def is_part(worker: Placed) -> bool:
    return worker.share_milli is not None or bool(worker.mig)
