"""What is worth computing once about a kind of job: jobs of one kind share one `Form`, as long as nodes stay what they are."""

from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from ..model.mig import fitting_profiles
from ..model.values import CLASS_RANK, Kind, Preemptible, Scenario
from ..place.unbroken import breakable
from .grid import Eligible, Grid

SERVING = CLASS_RANK["inference"]
Wants = tuple[tuple[int, tuple[int, ...]], ...]  # (role, ranks) to place

# What a role asks of nodes, of which kinds that need the same room have equal ones.
_room_of = attrgetter("least", "gpus", "mig", "memory_mib", "share_milli", "devices", "gpu_types", "cpu_milli", "host_memory_mib", "placing")


class Side(NamedTuple):
    serves: bool
    sharing: str
    tenant: str
    own_trust: bool  # it shares a GPU by MPS with other services at most


class Form:
    def __init__(self, kind: Kind, grid: Grid, shapes: dict[tuple[object, ...], int], *, apart: bool = False, walled: bool = False) -> None:
        self.kind = kind
        self.grid = grid
        self.elastic = kind.elastic
        self.fixed = kind.preemptible is Preemptible.NEVER
        self.parted = any(role.parted for role in kind.roles)
        role = kind.roles[0] if len(kind.roles) == 1 and not self.parted else None
        # What one worker takes of a node, where all of them are alike and hold whole GPUs: milli-GPU, processors, memory.
        self.each = None if role is None else (role.gpus * 1000, role.cpu_milli, role.host_memory_mib)
        self.level = kind.level
        self.protected = (kind.preemptible, -kind.class_rank, -kind.priority)  # where work is lined up at a guarantee
        self.types = grid.types_for(kind)
        self.wants: Wants = tuple((place, tuple(range(role.least))) for place, role in enumerate(kind.roles) if role.least)
        self.all_least = sum(role.least for role in kind.roles)
        placing = kind.placing
        # The level in one domain of which the whole job must stand; -1 is the whole fleet.
        self.width = grid.level_index[placing.required] if placing.required is not None else (-1 if placing.span_clusters else 0)
        tp_group = placing.tp_group
        # Whether counting slots decides if a job fits: one role of whole GPUs without groups or levels of its own.
        self.plain = role is not None and role.placing is None and (tp_group <= 1 or (role.gpus >= tp_group and not grid.narrow_islands))
        self.block = self.plain and breakable(grid, kind.roles[0].gpus, kind.roles[0].least, self.width)
        self.sole = self.plain and kind.roles[0].least == 1  # one worker is together with itself on any level
        # As whose neighbour it counts, where that matters: whether it serves, how it shares GPUs, and the tenant that it is.
        serves = kind.class_rank == SERVING
        self.side = Side(serves, kind.sharing, kind.tenant, serves and walled) if apart else None
        room = tuple(map(_room_of, kind.roles)), placing, kind.sharing, kind.labels, kind.needs, kind.tolerates_suspect, kind.slow, self.side
        self.shape = shapes.setdefault(room, len(shapes))  # the same number for all that need the same room
        self._eligible: dict[tuple[int, int, bool, bool], Eligible] = {}
        self._least: dict[int, int] = {}
        self._request: dict[tuple[int, bool], int] = {}

    @cached_property
    def lowest(self) -> int:
        return min(map(self.least_milli, self.types), default=0)

    @cached_property
    def largest(self) -> int | None:
        """The place of the role of its minimum whose workers hold most GPUs, where any holds whole ones."""
        roles = self.kind.roles
        return max([place for place, role in enumerate(roles) if role.least and role.gpus], key=lambda place: roles[place].gpus, default=None)

    @cached_property
    def crowds(self) -> bool:
        """Whether its workers could use up the processors or memory of a host before its GPUs."""
        asking = [(role.gpus, role.cpu_milli, role.host_memory_mib) for role in self.kind.roles if role.cpu_milli or role.host_memory_mib]
        hosts = self.grid.hosts
        return any(
            not gpus or cpus * there > room * gpus or memory * there > space * gpus for gpus, cpus, memory in asking for there, room, space in hosts
        )

    def eligible(self, place: int, quota_type: int, *, suspect: bool, spare: bool) -> Eligible:
        key = (place, quota_type, suspect, spare)
        if key not in self._eligible:
            self._eligible[key] = self.grid.eligible(self.kind, self.kind.roles[place], quota_type, suspect=suspect, spare=spare)
        return self._eligible[key]

    # What it is charged in a quota type, before it has a place

    def worker_milli(self, place: int, quota_type: int) -> int:
        """One worker of a role."""
        role = self.kind.roles[place]
        if role.gpus or not role.parted:
            return role.gpus * 1000
        if self.kind.sharing == "mig":
            charges = [charge for board in self.grid.boards[quota_type] for _, charge in fitting_profiles(role, board)[:1]]
            return role.devices * min(charges, default=0)  # on boards without such instances it asks for nothing
        return role.devices * role.part_milli(self.grid.smallest_memory(quota_type, role.memory_mib or 0))

    def least_milli(self, quota_type: int) -> int:
        """Its minimum."""
        if quota_type not in self._least:
            self._least[quota_type] = sum([role.least * self.worker_milli(place, quota_type) for place, role in enumerate(self.kind.roles)])
        return self._least[quota_type]

    def most_milli(self, quota_type: int) -> int:
        """All the workers that it may have."""
        return sum([role.ceiling * self.worker_milli(place, quota_type) for place, role in enumerate(self.kind.roles)])

    def wants_milli(self, wants: Wants, quota_type: int) -> int:
        if wants is self.wants:
            return self.least_milli(quota_type)
        return sum([len(ranks) * self.worker_milli(place, quota_type) for place, ranks in wants])

    def request_milli(self, quota_type: int, by_type: bool) -> int:
        """What it counts in R while it waits: up to its most workers, each part as large as on any of the accepted types. Where each type is divided
        `by_type`, that goes for memory alone: an instance is as large as it is there."""
        if (known := self._request.get((quota_type, by_type))) is not None:
            return known
        roles, sharing = self.kind.roles, self.kind.sharing
        if sharing == "exclusive" or (by_type if sharing == "mig" else all(role.memory_mib is None for role in roles)):
            asked = self.most_milli(quota_type)
        else:
            least = max(role.memory_mib or 0 for role in roles)
            types = tuple(each for each in self.types if self.grid.smallest_memory(each, least)) or self.types  # in others it asks for nothing
            asked = sum(role.ceiling * max(self.worker_milli(place, each) for each in types) for place, role in enumerate(roles))
        return self._request.setdefault((quota_type, by_type), asked)


class Forms(dict[int, Form]):
    """Forms by the identity of their kinds, and what is true of any of them: there are many, and few are added from plan to plan."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        self.grid = Grid(scenario)
        self.apart, self.walled = scenario.asks_apart, scenario.settings.colocation != "any"
        self._made_of = _ground_of(scenario)
        self.fits_empty: dict[tuple[int, int], bool] = {}  # by shape and quota type
        self.shapes: dict[tuple[object, ...], int] = {}
        # Kinds that advice has tried, by the form and the change: what is known by a kind's identity must not outlive it.
        self.changed_kinds: dict[tuple[Form, str, int | str | None], Kind] = {}
        self.elastic = self.parted = self.delay = self.desired = self.instances = False
        self.gpuless = False  # ask for no whole GPU
        self.choosy = self.by_memory = False  # accept several types; ask for a part by memory
        self.least_level = (0, 0)  # of class and number: nobody stands below it

    def serve(self, scenario: Scenario) -> bool:
        """Whether they are valid for a scenario as well."""
        return self._made_of == _ground_of(scenario)

    def of(self, kind: Kind) -> Form:
        if (known := self.get(id(kind))) is not None:
            return known
        form = Form(kind, self.grid, self.shapes, apart=self.apart, walled=self.walled)
        self.least_level = min(self.least_level, form.level) if self else form.level
        self[id(kind)] = form
        self.elastic |= form.elastic
        self.parted |= form.parted
        self.delay |= kind.preemption_delay_ms > 0
        self.gpuless |= not any(role.gpus and role.least and not role.parted for role in kind.roles)
        self.desired |= any(role.desired is not None for role in kind.roles)
        self.instances |= kind.sharing == "mig"
        self.choosy |= len(form.types) > 1
        self.by_memory |= any(role.memory_mib is not None for role in kind.roles)
        return form


def _ground_of(scenario: Scenario) -> tuple[object, ...]:
    """The fleet, and how it is filled: what would fit were it empty depends on both; and in which types jobs are tried first."""
    settings = scenario.settings
    tried = settings.type_choice, settings.gpu_prices
    return scenario.nodes, scenario.topology, settings.sharing_trust, settings.placement, settings.colocation, scenario.asks_apart, *tried
