"""Where the jobs of a scenario stand: no two may hold the same, and a split GPU holds only what it can."""

from ..model.mig import Instance, board_of, layout_faults
from ..model.values import (
    Kind,
    Node,
    Placed,
)
from .checkers import (
    Faults,
    short,
)

Path = tuple[str | int, ...]


class Occupancy:
    """Who holds what, to find two that hold the same."""

    def __init__(self, faults: Faults, message: str) -> None:
        self.faults = faults
        self.message = message
        self.whole: dict[str, list[tuple[int, str]]] = {}  # (GPUs, job) by node
        self.masks: dict[str, int] = {}
        self.parts: dict[tuple[str, int], list[tuple[str, Placed]]] = {}

    def take(self, node: Node, worker: Placed, kind: Kind, job: str, path: Path, *, promised: bool = False) -> None:
        """Note a place; `promised`: nobody is there yet, and the board may still have to be split anew for it."""
        taken = self.masks.get(node.name, 0)
        if kind.sharing == "exclusive" or (worker.share_milli is None and not worker.mig):
            both = taken & worker.gpus
            if both:
                gpu = (both & -both).bit_length() - 1
                other = self.holder(node.name, gpu) or self.parts[node.name, gpu][0][0]
                self.faults.add((*path, "gpus"), f"GPU {gpu} of {node.name} {self.message} {short(other)}")
            if worker.gpus & node.split and not promised:
                self.faults.add((*path, "gpus"), f"a GPU of {node.name} is in MIG mode and can't be held whole")
            self.hold(node.name, worker.gpus, job)
            return
        self.masks[node.name] = taken | worker.gpus
        for gpu in range(node.gpus):
            if worker.gpus >> gpu & 1:
                self.take_part(node, gpu, worker, job, path, promised=promised)

    def hold(self, node: str, gpus: int, job: str) -> None:
        """Whole GPUs of a node belong to a job."""
        self.masks[node] = self.masks.get(node, 0) | gpus
        self.whole.setdefault(node, []).append((gpus, job))

    def holder(self, node: str, gpu: int) -> str | None:
        """Who holds a whole GPU; of several the last that was named."""
        return next((job for gpus, job in reversed(self.whole.get(node, ())) if gpus >> gpu & 1), None)

    def take_part(self, node: Node, gpu: int, worker: Placed, job: str, path: Path, *, promised: bool) -> None:
        key = (node.name, gpu)
        holder = self.holder(node.name, gpu)
        if holder is not None:
            self.faults.add((*path, "gpus"), f"GPU {gpu} of {node.name} {self.message} {short(holder)}")
            return
        others = self.parts.setdefault(key, [])
        others.append((job, worker))
        is_mig = bool(worker.mig)
        if any(bool(other.mig) != is_mig for _, other in others):
            self.faults.add((*path, "gpus"), f"GPU {gpu} of {node.name} is in one mode at a time: MIG or shared")
        elif is_mig:
            board = board_of(node.gpu_type)
            assert board is not None
            instances = [Instance(start, profile) for _, one in others for at, profile, start in one.mig if at == gpu]
            for message in layout_faults(board, instances):
                self.faults.add((*path, "mig"), f"GPU {gpu} of {node.name}: {message}")
            existing = [Instance(one.start, one.profile) for one in node.mig if one.gpu == gpu]
            mine = next(Instance(start, profile) for at, profile, start in worker.mig if at == gpu)
            if mine not in existing and not promised:
                self.faults.add((*path, "mig"), f"GPU {gpu} of {node.name} has no instance {mine.profile} at {mine.start}")
        elif node.split >> gpu & 1 and not promised:
            self.faults.add((*path, "gpus"), f"GPU {gpu} of {node.name} is in MIG mode and can't be shared otherwise")
        elif sum(other.share_milli or 0 for _, other in others) > 1000:
            self.faults.add((*path, "gpus"), f"GPU {gpu} of {node.name} is shared out beyond the whole")
