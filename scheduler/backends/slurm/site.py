"""A Slurm cluster as the back-end sees it: its jobs, its nodes, what is remembered of runs, and the files and users of jobs."""

import os
import pwd
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from math import ceil, inf
from pathlib import Path
from time import monotonic

from django.db.models import Q

from scheduler.backends.base import (
    BackendError,
    BackendRefused,
    BackendSilent,
    StartOrder,
)
from scheduler.backends.manifests import Looker
from scheduler.backends.old_checkpoints import Deleter
from scheduler.backends.patience import Late, Patient
from scheduler.backends.recorded_runs import RecordedRuns
from scheduler.backends.slurm import shared
from scheduler.backends.slurm.answers import Answers
from scheduler.backends.slurm.client import SlurmClient, uid_of
from scheduler.backends.slurm.errors import SlurmFailed, SlurmSilent
from scheduler.backends.slurm.runs import KEPT_OF_A_RUN, Numbered, Run, is_marked, log_name, mark_of, state_of
from scheduler.backends.slurm.script import Places, ports_of
from scheduler.backends.slurm.values import KnownGpus, Partition, Settings, SlurmJob, SlurmNode, name_of, named
from scheduler.models import SlurmRun

PROBE_SECONDS = 1.0  # that a tick waits for the answer of a controller that was silent
CANCELLED_EACH = 10.0  # seconds at least between two times that a look cancels a job
STILL_ENDING = timedelta(minutes=10)  # so long Slurm may need for what has ended to the scheduler
NODES_FOR = 60.0  # seconds that addresses of nodes are remembered, and the longest time limit of a job


def partition_of(settings: Settings, partitions: Mapping[str, Partition]) -> tuple[str, Partition] | None:
    """Where jobs of a cluster run; nothing where Slurm has no such partition, or no default one."""
    wanted = settings.partition
    return next(((name, one) for name, one in partitions.items() if (name == wanted if wanted else one.is_default)), None)


def minutes_of(seconds: float) -> int:
    """Whole minutes, as Slurm has them, that are no shorter."""
    return ceil(seconds / 60)


def time_argument(minutes: int | None) -> str:
    """Stated always: a job without a time limit would be given the default one of its partition."""
    return f"--time={'UNLIMITED' if minutes is None else minutes}"


class Site(RecordedRuns[Run]):
    """What orders and looks have in common."""

    rows, run_type, kept, _state_of = SlurmRun, Run, KEPT_OF_A_RUN, staticmethod(state_of)

    def __init__(
        self,
        cluster: int,
        settings: Settings,
        *,
        client: SlurmClient | None = None,
        secrets: Callable[[str, str], str | None] = lambda _name, _team: None,  # by name and the path of the job's queue
        report_url: str = "",
    ) -> None:
        self.cluster, self.settings = cluster, settings
        self.client = client or SlurmClient(settings)
        self.secrets, self.report_url = secrets, report_url
        shared.told_apart(self._top, [self._top_in(folder) for folder in settings.former if folder != settings.folder])
        self._held = threading.local()
        self._nodes: tuple[float, dict[str, SlurmNode]] = (0.0, {})
        self._partition: tuple[float, tuple[str, Partition] | None] = (-inf, None)
        self._gpus: KnownGpus = {}
        self._ports: dict[tuple[str, int], str] = {}  # of runs, by the node of their first rank
        self._looker, self._deleter = Looker(), Deleter()
        self._answers = Answers()
        self._probing = Patient("slurm-probe")
        self._waits_left = 0.0
        self._boot: tuple[float, datetime | None] = (-inf, None)
        self._sweeps = False  # in this look
        self._cancelled: dict[int, float] = {}  # jobs, a moment ago
        self._kept_held: dict[int, float] = {}  # jobs that Slurm did not release a moment ago
        # Parts that wait since then, while others of their run have begun (true) or a job outside runs on their node, and the GPUs of such jobs.
        self._apart: dict[tuple[str, int, bool], tuple[datetime, KnownGpus]] = {}
        self._were_apart = self._apart  # in the look before
        self._accounted: dict[tuple[str, int], SlurmJob] = {}  # by name and number: what Slurm's accounts say of what its controller has forgotten
        self._asked_for: dict[tuple[str, int], float] = {}  # and when they were asked
        self._gathered: dict[str, float] = {}  # runs whose logs were fetched from their nodes a moment ago

    def probe(self) -> None:
        """A controller that is slow has answered when it does so later than anybody waits for, which the next probe tells. After a late fault it is
        asked anew."""
        shared.must_answer(self._top)
        if (late := self._probing.late_answer()) is not None and late.exception() is None:
            return
        try:
            self._probing.call(self.client.ping, wait=PROBE_SECONDS)
        except Late:
            raise BackendSilent(f"Slurm did not answer within {PROBE_SECONDS:g} s.") from None

    @contextmanager
    def together(self, keys: Sequence[str] = ()) -> Iterator[None]:
        """One look at Slurm's queue serves all orders of the block, and what was submitted in it is released by its end, many with one call."""
        if getattr(self._held, "release", None) is not None:
            yield
            return
        self._held.release, self._held.jobs, self._held.silent, self._held.announced = [], None, None, {}
        try:
            yield
            if self._held.release:
                self.client.release(self._held.release)
        finally:
            self._held.release = self._held.jobs = self._held.silent = self._held.announced = None

    @contextmanager
    def _waits_once(self) -> Iterator[None]:
        """Of a controller that is silent the orders of a block wait once, not each of them."""
        if (silent := getattr(self._held, "silent", None)) is not None:
            raise SlurmSilent(str(silent))
        try:
            yield
        except SlurmSilent as fault:
            self._held.silent = fault if getattr(self._held, "release", None) is not None else None
            raise

    def _jobs(self) -> list[SlurmJob]:
        if self._held.jobs is None:
            with self._waits_once():
                self._held.jobs = self.client.jobs()
        found: list[SlurmJob] = self._held.jobs
        return found

    def _mark(self, job: SlurmJob) -> tuple[str, int]:
        return mark_of(job.comment, self.settings.tag)

    def _is_ours(self, job: SlurmJob) -> bool:
        """By what it says, which anybody may say: where nothing depends on it but what people are told."""
        return bool(self._mark(job)[0]) or job.name.startswith(name_of(""))

    @property
    def _uid(self) -> int | None:
        return uid_of(self.settings)

    def _numbered(self) -> Numbered:
        return Numbered({job.id: job for job in self._jobs()}, self.settings.tag, self._uid)

    def _submitted(self, key: str, run: Run | None = None) -> dict[int, int]:
        """Slurm jobs of a run by number of their part, the first of each: a second one was submitted when an answer was lost. `run`: as far as it is
        known."""
        found: dict[int, int] = {}
        users = {self._uid, *(run.uids if run is not None else ())}
        for job in sorted(self._jobs(), key=lambda job: job.id):
            whose, number = self._mark(job)
            if whose == key and job.uid in users and not job.ended:
                found.setdefault(number, job.id)
        named = [job.id for job in self._jobs() if job.name == name_of(key) and job.uid in users and not (job.ended or is_marked(job.comment))]
        return self._by_output(key, run, sorted({*named} - {*(run.ids if run is not None else ())})) | found

    def _by_output(self, key: str, run: Run | None, ids: Sequence[int]) -> dict[int, int]:
        """The same of a site that writes comments of its own. A job of that name may be another console's, and a name says no part: the file of its
        output does. Of a run that is not known, by numbers of no part."""
        outputs = self.client.outputs(ids) if ids else {}
        if run is None:
            return {-one: one for one, path in outputs.items() if Path(path).parent == self._top / "runs" / key}
        found: dict[int, int] = {}
        for part in run.parts:
            seat = f"{part['seats'][0]['role']}-{part['seats'][0]['index']}"
            files = {f"{run.folder}/{log_name(own=own, seat=seat, part=part['number'])}" for own in (True, False)}
            for one in ids:
                if outputs.get(one) in files and not part.get("id"):
                    found.setdefault(part["number"], one)
        return found

    def _submitted_now(self, key: str, run: Run | None = None) -> dict[int, int]:
        with self.together():
            return self._submitted(key, run)

    def _all_ids(self, run: Run) -> list[int]:
        """Those written down, and those whose number was lost on its way."""
        unknown = any(not part.get("id") for part in run.parts)
        return sorted({*run.ids, *(self._submitted_now(run.key, run).values() if unknown else ())})

    def _ask_to_save(self, run: Run) -> None:
        """Those that run: scancel waits for seconds on one that does not yet, and that has nothing to save."""
        if run.saves:
            with self.together():
                by_id = self._numbered()
            self._send(run, "USR1", [job.id for part in run.parts if (job := by_id.of(run.key, part)) is not None and job.running])

    def _send(self, run: Run, name: str, ids: Sequence[int]) -> None:
        """To the script alone where it passes on what it is sent: each signal to a single process, USR1 to those who know it."""
        alone = set(ids) if name == "USR1" else {part["id"] for part in run.parts if part.get("single", run.single)}
        for flags in (["--batch"], []):
            self._cancel([one for one in ids if (one in alone) is bool(flags)], named(run.key), f"--signal={name}", *flags)

    def _cancel_again(self, ids: Sequence[int], *flags: str) -> None:
        """In a look: those that were cancelled a moment ago are given the time to end that Slurm gives them."""
        moment = monotonic()
        if due := [one for one in ids if moment - self._cancelled.get(one, -inf) >= CANCELLED_EACH]:
            self._cancel(due, *flags)

    def _cancel(self, ids: Sequence[int], *flags: str) -> None:
        is_heard = True
        try:
            with self._waits_once():
                self.client.cancel(ids, *flags)
        except BackendError as fault:
            is_heard = isinstance(fault, SlurmFailed)
            raise
        finally:
            if is_heard and not any(flag.startswith("--signal") for flag in flags):
                moment = monotonic()
                kept = {one: at for one, at in self._cancelled.items() if moment - at < CANCELLED_EACH}
                self._cancelled = kept | dict.fromkeys(ids, moment)

    def _account(self) -> pwd.struct_passwd:
        if not self.settings.user:
            own = pwd.getpwuid(os.getuid())
            if own.pw_uid == 0:
                raise BackendRefused("Jobs would run as root: name a user for the jobs of this cluster.")
            return own
        try:
            found = pwd.getpwnam(self.settings.user)
        except KeyError:
            raise BackendRefused(f"There is no user {self.settings.user} on the console's machine.") from None
        if found.pw_uid == 0:
            raise BackendRefused("Jobs on Slurm never run as root.")
        if os.getuid() not in (0, found.pw_uid):
            raise BackendRefused(f"Only a console that runs as root can submit jobs of {self.settings.user}.")
        return found

    @property
    def _top(self) -> Path:
        return self._top_in(self.settings.folder)

    def _top_in(self, folder: str) -> Path:
        return shared.top_in(folder, self.settings.tag)

    def _folders(self, order: StartOrder) -> tuple[Path, Path]:
        account, top = self._account(), self._top
        names = Path("runs", order.key), Path("checkpoints", order.job, str(order.attempt))
        try:
            shared.asked(top, lambda: shared.folders_made(top, names, account))
        except OSError as fault:
            raise BackendError(f"The shared folder {self.settings.folder} cannot be used: {fault}") from fault
        return top / names[0], top / names[1]

    def _places(self, order: StartOrder, run: Run) -> Places:
        account = self._account()
        return Places(run.folder, run.checkpoints, account.pw_name, account.pw_dir, self.report_url, run.port, self.settings.node_logs)

    def _port(self, key: str, node: str) -> int:
        """Where the ranks of a run meet: no port of another run whose first rank is on that node, as far as is known since the last look."""
        port = next((port for port in ports_of(key) if self._ports.get((node, port), key) == key), 0)
        self._ports[node, port] = key
        return port

    def _secret_values(self, order: StartOrder) -> dict[str, str]:
        found = {}
        for variable, name in (order.launch.get("secrets") or {}).items():
            value = self.secrets(str(name), order.team)
            if value is None:
                raise BackendRefused(f"There is no secret {str(name)!r} for {order.team or 'this job'}.")
            found[str(variable)] = value
        return found

    def _minutes(self, limit_seconds: int | None, grace_seconds: int) -> int | None:
        """For how long Slurm is to let a job run; None: as long as it likes. The console ends what is past its limit, and Slurm where it does not:
        later, but never past what the partition allows, where a job without a limit ends."""
        _, longest = self._partition_now()
        if limit_seconds is None:
            return longest
        wanted = minutes_of(limit_seconds) + 1 + minutes_of(grace_seconds)
        return wanted if longest is None else min(wanted, longest)

    def _too_long(self, limit_seconds: int | None) -> str:
        name, longest = self._partition_now()
        if limit_seconds is None or longest is None or limit_seconds <= 60 * longest:
            return ""
        return f"Its time limit of {limit_seconds} s is longer than Slurm's partition {name} allows: {60 * longest} s."

    def _partition_now(self) -> tuple[str, int | None]:
        """Its name, and the longest time of a job there in minutes."""
        read, known = self._partition
        if monotonic() - read > NODES_FOR:
            with self._waits_once():
                known = partition_of(self.settings, self.client.partitions())
            self._partition = (monotonic(), known)
        return (known[0], known[1].minutes) if known is not None else ("", None)

    def _address(self, node: str) -> str:
        """Where the first rank is reached: the name of a node need not resolve."""
        return self._node(node).address or node

    def _gres(self, node: str) -> str:
        return self._node(node).gres

    def _node(self, node: str) -> SlurmNode:
        read, known = self._nodes
        if node not in known or monotonic() - read > NODES_FOR:
            with self._waits_once():
                known = {one.name: one for one in self.client.nodes()}
            self._nodes = (monotonic(), known)
        if node not in known:
            raise BackendRefused(f"Slurm knows no node {node}.")
        return known[node]


def jobs_of_others(cluster: int, settings: Settings, jobs: Sequence[SlurmJob], *, now: datetime) -> list[SlurmJob]:
    """Those that this console has not submitted. Its own are known by number, too, as a site may write comments of its own."""
    uid = uid_of(settings)
    by_id = Numbered({job.id: job for job in jobs}, settings.tag, uid)
    rows = SlurmRun.objects.filter(Q(forgotten_at__isnull=True) | Q(forgotten_at__gte=now - STILL_ENDING), cluster_id=cluster)
    parts = [(row.attempt_key, part) for row in rows for part in row.state.get("parts", ())]
    own = {job.id for key, part in parts if (job := by_id.of(key, part)) is not None}
    return [job for job in jobs if job.id not in own and (job.uid != uid or not mark_of(job.comment, settings.tag)[0])]
