"""Which back-end a cluster has. One object a cluster and process, so that what a back-end remembers between calls is kept."""

from collections import Counter, defaultdict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import suppress
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from django.conf import settings

from gpufleet.core.models import Installation, User
from gpufleet.core.prepared import Prepared
from gpufleet.core.times import now
from scheduler.backends.base import Backend, BackendError, Facts
from scheduler.backends.kubernetes.backend import FACTS as KUBERNETES_FACTS
from scheduler.backends.kubernetes.backend import KubernetesBackend
from scheduler.backends.kubernetes.values import Settings as KubernetesSettings
from scheduler.backends.local import FACTS, LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.memory import DatabaseStore
from scheduler.backends.secrets import secret_value
from scheduler.backends.simulated import SimulatedBackend
from scheduler.backends.slurm.backend import FACTS as SLURM_FACTS
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.values import KnownGpus, Settings
from scheduler.models import Cluster, Gpu, KubernetesCluster, Node, SlurmCluster

FULL_LOOK = timedelta(seconds=30)
STEPS_EACH = timedelta(seconds=5)  # files of step times are taken in: however often a job writes them
CLUSTERS = Prepared[Cluster](lambda: Cluster.objects.filter(removed_at__isnull=True).select_related("slurm", "kubernetes").order_by("pk"))
SIMULATED, LOCAL, SLURM, KUBERNETES = KINDS = ("simulated", "local", "slurm", "kubernetes")
FACTS_OF = {SIMULATED: Facts(), LOCAL: FACTS, SLURM: SLURM_FACTS, KUBERNETES: KUBERNETES_FACTS}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


class UnknownBackend(BackendError):
    """A cluster names a back-end that this program does not have."""


class Silence(NamedTuple):
    """The first and the last of the calls in a row that a back-end did not answer."""

    since: datetime
    last: datetime
    hangs: str  # why, where any other call would wait as long; empty: only this one failed
    is_folder: bool = False  # a folder hangs: what needs none would be answered


class Named(NamedTuple):
    """Which back-end a cluster has, and since when it is reached as it is."""

    kind: str
    since: datetime | None


class Backends(Mapping[int, Backend]):
    """Back-ends by key of their cluster, and when each was last asked for all that runs there."""

    def __init__(self, by_cluster: Mapping[int, Backend]) -> None:
        self._by_cluster = dict(by_cluster)
        self._named: dict[int, Named] = {}
        self._looked: dict[int, datetime] = {}
        self._steps: dict[int, datetime] = {}
        self.missing: dict[str, datetime] = {}  # runs that a back-end did not know, and since when
        self.unseen: dict[str, datetime] = {}  # runs that have not been seen since their back-end was silent, and since when it was
        self.silent: dict[int, Silence] = {}  # clusters whose back-end does not answer
        self.outside: dict[int, KnownGpus] = defaultdict(dict)  # of jobs beside ours, by cluster

    def __getitem__(self, cluster: int) -> Backend:
        return self._by_cluster[cluster]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._by_cluster))

    def __len__(self) -> int:
        return len(self._by_cluster)

    def items(self) -> ItemsView[int, Backend]:
        """As they are now: another thread may find meanwhile that a cluster has left the fleet."""
        there = self._by_cluster.copy()
        return {cluster: there[cluster] for cluster in sorted(there)}.items()

    def values(self) -> ValuesView[Backend]:
        return dict(self.items()).values()

    def provide(self, cluster: Cluster) -> Backend:
        """The back-end that a cluster names now; made when it is first asked for, and anew when another one is named, or is reached otherwise."""
        named = _named(cluster)
        if cluster.pk not in self._by_cluster or self._named.get(cluster.pk, named) != named:
            try:
                self._by_cluster[cluster.pk] = _made(cluster)  # in one step: other threads read it meanwhile
            except UnknownBackend:
                self._by_cluster.pop(cluster.pk, None)
                raise
            finally:
                self._looked.pop(cluster.pk, None)
            self._named[cluster.pk] = named
        return self._by_cluster[cluster.pk]

    def keep(self, clusters: Iterable[int]) -> None:
        """The others have left the fleet."""
        for gone in self._by_cluster.keys() - set(clusters):
            del self._by_cluster[gone]
            self._named.pop(gone, None)
            self.silent.pop(gone, None)

    def full_look_due(self, cluster: int, at: datetime) -> bool:
        """At the start, and now and then: also after a clock was set back."""
        last = self._looked.get(cluster)
        return last is None or abs(at - last) >= FULL_LOOK

    def steps_due(self, cluster: int, at: datetime) -> bool:
        """Whether what files of a cluster say of step times is to be taken in now; then not again for a while, whatever others say meanwhile."""
        last = self._steps.get(cluster)
        if last is not None and abs(at - last) < STEPS_EACH:
            return False
        self._steps[cluster] = at
        return True

    def looked(self, cluster: int, at: datetime) -> None:
        self._looked[cluster] = at


_ours = Backends({})
_lock = Lock()


def backends_all(clusters: Iterable[Cluster] | None = None) -> Backends:
    """The back-ends of all clusters; `clusters` where they have just been read.

    A cluster with one that does not exist here is left out; whoever needs it is told by `backend_for`.
    """
    with _lock:
        if clusters is None:
            clusters = list(CLUSTERS())
            _ours.keep(cluster.pk for cluster in clusters)
        for cluster in clusters:
            with suppress(UnknownBackend):
                _ours.provide(cluster)
        return _ours


def backend_for(cluster: Cluster) -> Backend:
    """Of one that has left the fleet, too: the logs of its runs are there. It is no back-end of the loop any more."""
    if cluster.removed_at is not None:
        return _made(cluster)
    with _lock:
        return _ours.provide(cluster)


def exists(kind: str) -> bool:
    """Whether this program has such a back-end. Nothing is placed where it has none."""
    return kind in KINDS


def runs_images(kind: str) -> bool:
    """Whether back-ends of that kind run images. One that is unknown here runs nothing at all."""
    return kind in FACTS_OF and FACTS_OF[kind].runs_images


def shares(kind: str, way: str) -> bool:
    """Whether back-ends of that kind share a GPU that way, wherever it stands. One that is unknown here runs nothing at all."""
    facts = FACTS_OF.get(kind)
    return facts is not None and (facts.runs_mps if way == "mps" else facts.runs_timeslices)


def replaces(kind: str, *, in_place: bool) -> bool:
    """Whether back-ends of that kind start single workers of a run anew, as they do where they resize it in place; `in_place`: whether its job states
    that."""
    facts = FACTS_OF.get(kind)
    return facts is not None and (facts.resizes_in_place or (facts.resizes_stated and in_place))


def clusters_without_images() -> tuple[str, ...]:
    """Names of the clusters where nothing runs in an image."""
    return tuple(cluster.name for cluster in CLUSTERS() if not runs_images(cluster.backend))


def is_simulated() -> bool:
    """Whether any cluster is."""
    return any(cluster.backend == SIMULATED for cluster in CLUSTERS())


def _named(cluster: Cluster) -> Named:
    row = getattr(cluster, cluster.backend, None) if cluster.backend in (SLURM, KUBERNETES) else None
    return Named(cluster.backend, row.changed_at if row is not None else None)


def _made(cluster: Cluster) -> Backend:
    if cluster.backend == SIMULATED:
        return SimulatedBackend(DatabaseStore(cluster.pk), clock=now, speed_of=lambda node: _type_of(cluster.pk, node))
    if cluster.backend == LOCAL:
        return local_backend()
    if cluster.backend == SLURM:
        row = SlurmCluster.objects.filter(cluster=cluster).first()
        if row is None:
            raise UnknownBackend(f"Cluster {cluster.name} is not connected to Slurm yet.")
        return SlurmBackend(cluster.pk, slurm_settings(row), secrets=_secret, report_url=report_url())
    if cluster.backend == KUBERNETES:
        connected = KubernetesCluster.objects.filter(cluster=cluster).first()
        if connected is None:
            raise UnknownBackend(f"Cluster {cluster.name} is not connected to Kubernetes yet.")
        return KubernetesBackend(
            cluster.pk,
            kubernetes_settings(connected),
            kubeconfig=settings.KUBECONFIG,
            secrets=_secret,
            report_url=report_url(),
            logs=settings.DATA_DIR / "kubernetes" / connected.tag,
        )
    raise UnknownBackend(f"Cluster {cluster.name} names the back-end {cluster.backend}, which does not exist.")


def _secret(name: str, team: str) -> str | None:
    return secret_value(name, team=team)


def _type_of(cluster: int, node: str) -> str:
    found = Node.objects.filter(cluster=cluster, name=node, removed_at__isnull=True).values_list("gpu_type_id", flat=True).first()
    return found or ""


def slurm_settings(row: SlurmCluster) -> Settings:
    return Settings(row.conf, row.partition, row.account, row.user, row.folder, row.tag, row.rest_url, row.node_logs, tuple(row.former_folders))


def kubernetes_settings(row: KubernetesCluster) -> KubernetesSettings:
    return KubernetesSettings(**{one.name: getattr(row, one.name) for one in fields(KubernetesSettings)})


def report_url() -> str:
    """Where ranks report checkpoints; empty: the console knows no address of its own."""
    console = (settings.PUBLIC_URL or settings.OWN_URL).rstrip("/")
    return f"{console}/api/v1/checkpoints" if console else ""


def local_backend() -> LocalBackend:
    """What runs jobs on this machine, or would."""
    return LocalBackend(settings.DATA_DIR / "local", local_rules())


def local_rules() -> Rules:
    chosen = settings.LOCAL
    return Rules(
        user=chosen["LOCAL_USER"],
        same_user=chosen["LOCAL_SAME_USER"],
        secrets=_secret,
        allowed=why_not_local,
        report_url=report_url(),
        checkpoints=Path(chosen["LOCAL_CHECKPOINTS"]) if chosen["LOCAL_CHECKPOINTS"] else None,
        uids=chosen["LOCAL_UIDS"],
        cgroup=Path(chosen["LOCAL_CGROUP"]) if chosen["LOCAL_CGROUP"] else None,
        pin=chosen["LOCAL_PIN"],
        numa=_numa_of,
        kept_bytes=1024**2 * chosen["LOCAL_LOGS_MIB"],
    )


def _numa_of(uuids: Sequence[str]) -> int | None:
    """The NUMA node on which the most of these GPUs are, as the inventory has it; None where it knows of none."""
    known = Gpu.objects.filter(uuid__in=uuids, removed_at__isnull=True, numa_node__isnull=False).values_list("numa_node", flat=True)
    return min(Counter(known).most_common(), key=lambda one: (-one[1], one[0]), default=(None, 0))[0]


def why_not_local() -> str:
    """Why nothing may run on this machine as things are; empty: it may."""
    chosen = settings.LOCAL
    if Installation.objects.exclude(demo="none").exists():
        return "A demo runs nothing on its machine."
    if not chosen["LOCAL"]:
        return "Jobs on the console's own machine are switched off (GPUFLEET_LOCAL)."
    if chosen["LOCAL_SAME_USER"]:
        if not set(settings.ALLOWED_HOSTS) <= LOOPBACK:
            return "GPUFLEET_LOCAL_SAME_USER is for a console that only this machine reaches; GPUFLEET_ALLOWED_HOSTS names others."
        if User.objects.filter(is_active=True).count() > 1:
            return "GPUFLEET_LOCAL_SAME_USER is for a console of one person; several have accounts."
    return ""
