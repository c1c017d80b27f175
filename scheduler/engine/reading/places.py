"""Where the jobs of a scenario stand: no two may hold the same, and a split GPU holds only what it can."""

from collections.abc import Collection, Sequence
from typing import Any

from ..model.mig import Instance, board_of, layout_faults
from ..model.values import Kind, Node, Placed, Role, Run, has_lapsed, new_placed, new_run
from ..state.fleet import bits_of
from .checkers import SHARE
from .faults import Bad, short

WHOLE_KEYS = frozenset({"role", "index", "node", "gpus"})
WORKER_KEYS = WHOLE_KEYS | {"gpu_share", "gpu_memory_gb", "mig"}


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
        if not rows:
            return ()
        placed: dict[tuple[int, int], Placed] = {}
        for place, row in enumerate(rows):
            if self.faulty_nodes and type(row) is dict and type(row.get("node")) is str and row["node"] in self.faulty_nodes:
                continue  # its fault was reported where it is
            try:
                worker = self.worker(row, kind)
                if (worker.role, worker.index) in placed:
                    bad.add(f"worker {worker.index} of this role is named twice", key, place, "index")
                placed[worker.role, worker.index] = worker
                occupancy.take(self.nodes[worker.node], worker, job, promised=promised)
            except Bad as wrong:
                bad.note(wrong, key, place)
        return tuple(placed[at] for at in sorted(placed))

    def worker(self, raw: Any, kind: Kind) -> Placed:
        if type(raw) is not dict:
            raise Bad("must be an object")
        of_part = raw.keys() - WHOLE_KEYS
        if not of_part <= WORKER_KEYS:
            raise Bad(f"unknown key {short(min(map(str, of_part - WORKER_KEYS)))}; allowed are {', '.join(sorted(WORKER_KEYS))}")
        names = [role.name for role in kind.roles]
        named = raw.get("role", names[0])
        if named not in names:
            raise Bad(f"role {short(named)} is not one of the job's: {', '.join(sorted(names))}")
        place = names.index(named)
        role = kind.roles[place]
        index = raw.get("index", 0)
        if type(index) is not int or not 0 <= index < role.most:
            raise Bad(f"index must be between 0 and {role.most - 1}, not {short(index)}")
        node = self.nodes.get(raw["node"]) if type(raw.get("node")) is str else None
        if node is None:
            raise Bad(f"node {short(raw.get('node'))} is not in this scenario")
        mask = gpus_named(raw.get("gpus"), node)
        if of_part and not role.parted:
            raise Bad("holds a part, but its role asks for whole GPUs")
        if not role.parted:
            if mask.bit_count() != role.gpus:
                raise Bad(f"holds {mask.bit_count()} GPUs; its role asks for {role.gpus}")
            return new_placed(place, index, node.name, mask)
        if mask.bit_count() != role.devices:
            raise Bad(f"holds parts of {mask.bit_count()} GPUs; its role asks for {role.devices}")
        if kind.sharing == "mig":
            return new_placed(place, index, node.name, mask, mig=instances_named(raw.get("mig"), role, node, raw["gpus"]))
        return new_placed(place, index, node.name, mask, share_named(raw, role, node, kind.sharing))


def gpus_named(raw: Any, node: Node) -> int:
    if type(raw) is not list:
        raise Bad("gpus must be a list of GPU numbers")
    mask = 0
    for gpu in raw:
        if type(gpu) is not int or not 0 <= gpu < node.gpus:
            raise Bad(f"GPU {short(gpu)} is not one of the node's {node.gpus}, counted from 0")
        if mask >> gpu & 1:
            raise Bad(f"GPU {gpu} is named twice")
        mask |= 1 << gpu
    return mask


def share_named(raw: dict[str, Any], role: Role, node: Node, sharing: str) -> int:
    if "mig" in raw:
        raise Bad(f"holds a MIG instance, but its job shares by {sharing}")
    if role.share_milli is None:
        assert role.memory_mib is not None
        return max(1, 1000 * role.memory_mib // node.gpu_memory_mib) if node.gpu_memory_mib else 1000
    if "gpu_share" in raw and SHARE.read(raw["gpu_share"]) != role.share_milli:
        raise Bad(f"gpu_share must be the role's, {role.share_milli / 1000}")
    return role.share_milli


def instances_named(raw: Any, role: Role, node: Node, gpus: list[int]) -> tuple[tuple[int, str, int], ...]:
    board = board_of(node.gpu_type)
    if board is None:
        raise Bad(f"{node.gpu_type} can't be split by MIG")
    items = raw if type(raw) is list else [raw]
    if len(items) != len(gpus):
        raise Bad("mig must hold one {profile, start} per GPU")
    found = []
    for gpu, item in zip(gpus, items, strict=True):
        if type(item) is not dict or set(item) != {"profile", "start"}:
            raise Bad("mig must be {profile, start}")
        profile = board.profile(item["profile"]) if type(item["profile"]) is str else None
        if profile is None or type(item["start"]) is not int or item["start"] not in profile.starts:
            raise Bad(f"{board.name} has no instance {short(item)}")
        if role.mig is not None and role.mig != profile.name:
            raise Bad(f"holds {profile.name}; its role asks for {role.mig}")
        if role.memory_mib is not None and profile.usable_mib < role.memory_mib:
            raise Bad(f"{profile.name} has {profile.usable_mib} MiB; its role asks for {role.memory_mib}")
        found.append((gpu, profile.name, item["start"]))
    return tuple(found)


class Occupancy:
    """Who holds what, to find two that hold the same."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.masks: dict[str, int] = {}
        self.holders: dict[str, list[tuple[str, Placed]]] = {}

    def take(self, node: Node, worker: Placed, job: str, *, promised: bool) -> None:
        """Note a place, and what is wrong with it."""
        bad = Bad()
        taken, held = self.masks.get(node.name, 0), self.holders.setdefault(node.name, [])
        both = taken & worker.gpus
        if is_part(worker):
            for gpu in bits_of(worker.gpus):
                self.check_part(node, gpu, worker, held, bad, promised=promised)
        else:
            if both:
                self.add_twice(node, (both & -both).bit_length() - 1, held, bad)
            if node.mig and worker.gpus & node.split and not promised:
                bad.add(f"a GPU of {node.name} is in MIG mode and can't be held whole", "gpus")
        self.masks[node.name] = taken | worker.gpus
        held.append((job, worker))
        bad.raise_if_any()

    def add_twice(self, node: Node, gpu: int, held: Sequence[tuple[str, Placed]], bad: Bad) -> None:
        holder = next(job for job, one in held if one.gpus >> gpu & 1)
        bad.add(f"GPU {gpu} of {node.name} {self.message} {short(holder)}", "gpus")

    def check_part(self, node: Node, gpu: int, worker: Placed, held: Sequence[tuple[str, Placed]], bad: Bad, *, promised: bool) -> None:
        wholes = [(job, one) for job, one in held if one.gpus >> gpu & 1 and not is_part(one)]
        parts = [*(one for _, one in held if one.gpus >> gpu & 1), worker]
        at = f"GPU {gpu} of {node.name}"
        if wholes:
            self.add_twice(node, gpu, wholes, bad)
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
            bad.add(f"{at} is in MIG mode and can't be shared otherwise", "gpus")
        elif sum(one.share_milli or 0 for one in parts) > 1000:
            bad.add(f"{at} is shared out beyond the whole", "gpus")


def is_part(worker: Placed) -> bool:
    return worker.share_milli is not None or bool(worker.mig)
