"""From a description to jobs that wait: checked by the schema, by the engine, by the back-ends' facts and by the submitter's rights, all at once.

Whatever is wrong is told with its path in the description, and nothing is written.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import CharField, Exists, ExpressionWrapper, F, OuterRef, Q, Subquery, Value
from django.db.models.functions import Concat

from gpufleet.core.audit import SYSTEM, Actor, audit_entry, audit_write
from gpufleet.core.bulk import FEW, keys_ahead, objects_insert, rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared, sent_ahead, together
from quotas.models import QuotaNode
from quotas.permissions import Access, Can, is_within
from scheduler.backends.base import Facts
from scheduler.backends.registry import CLUSTERS, backends_all
from scheduler.backends.secrets import secret_exists, secrets_kept
from scheduler.engine.model.mig import board_of
from scheduler.engine.model.values import Kind, Role
from scheduler.jobs.reading import Faults, read_description
from scheduler.jobs.schema import JobDescription
from scheduler.jobs.storable import TOO_DEEP, text_is_storable, unstorable
from scheduler.jobs.stored import roles_of, takes_gpus
from scheduler.jobs.template_rules import Template
from scheduler.jobs.writing import DUE_AT
from scheduler.models import Cluster, Dependency, GpuType, Job, JobClass, JobEvent, JobState, MigInstance, Node, TemplateSpeeds
from scheduler.notify.happenings import Happened
from scheduler.selectors.energy import Tariffs
from scheduler.selectors.template_speeds import speeds_given
from scheduler.selectors.templates import template_named
from scheduler.services.jobs.admission import Wish, refusals_counted, submissions_admit
from scheduler.services.jobs.deferring import Deferral, Wanted, deferral_judge, deferring_faults
from scheduler.services.jobs.marks import marks_write
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.story import Event
from scheduler.services.notify.outbox import happening_wanted, happenings_write
from scheduler.snapshots.fleet import LEVELS, topology_now
from scheduler.snapshots.jobs import Kinds

MOST_AT_ONCE = 10_000
TYPES = Prepared[GpuType](lambda: GpuType.objects.all())
_NODE = [column.attname for column in QuotaNode._meta.concrete_fields]
_below = QuotaNode.objects.filter(parent=OuterRef("pk"), archived_at__isnull=True)
# At the node or nearest above it: the class of a job that states none.
_usual = (
    QuotaNode.objects.exclude(default_class="")
    .annotate(below=ExpressionWrapper(OuterRef("path"), CharField()))
    .filter(Q(below=F("path")) | Q(below__startswith=Concat(F("path"), Value("/"))))
    .order_by("-depth")
    .values("default_class")[:1]
)
MOST_QUOTAS_KNOWN, QUOTAS_NAMED = 2000, 3
NODE_AND_DIVIDED: Prepared[tuple[Any, ...]] = Prepared(
    lambda path: QuotaNode.objects.filter(path=path, archived_at__isnull=True).order_by().values_list(*_NODE, Exists(_below), Subquery(_usual))
)


@dataclass(frozen=True, slots=True)
class Checked:
    """A description that may be submitted, with what it refers to."""

    description: JobDescription
    quota: QuotaNode
    kind: Kind
    gpus_milli: int
    after: tuple[tuple[int, bool], ...]  # jobs, and whether only their success will do
    template: Template | None = None
    speeds: int | None = None  # by number those of its template that it was given, as it states none

    @property
    def count(self) -> int:
        """How many jobs it is."""
        return self.description.array.count if self.description.array else 1

    @property
    def wish(self) -> Wish:
        """What there has to be room for."""
        return Wish(self.quota, self.count, waits=not self.description.draft)


@dataclass(frozen=True, slots=True)
class Due:
    """The schedule that submits, and the time at which it was due."""

    schedule: str
    at: datetime


def submission_create(
    *, access: Access, description: Mapping[str, Any], now: datetime, actor: Actor, also: Callable[[list[Job]], None] | None = None
) -> list[Job]:
    """Submit a job, or all elements of an array. A `ValidationError` names every fault by its path. `also` writes more, in the same transaction."""
    checked = submissions_check(access=access, descriptions=[description], now=now)
    return submissions_write(checked=checked, access=access, now=now, actor=actor, also=also)


def submissions_create(*, access: Access, descriptions: Sequence[Mapping[str, Any]], now: datetime, actor: Actor) -> list[Job]:
    """Submit many, all or none."""
    return submissions_write(checked=submissions_check(access=access, descriptions=descriptions, now=now), access=access, now=now, actor=actor)


def submissions_write(
    *,
    checked: Sequence[Checked],
    access: Access,
    now: datetime,
    actor: Actor,
    due: Due | None = None,
    also: Callable[[list[Job]], None] | None = None,
    is_admitted: bool = False,
) -> list[Job]:
    """The jobs of descriptions that were checked, in their order; those of an array follow each other. With `due` a schedule submits them.

    `TooMany` where a limit has no room for all of them now, unless the caller's transaction has admitted them already.
    """
    if not checked:
        return []
    news = News()
    few = sum(one.count * max(1, len(one.description.after)) for one in checked) <= FEW
    jobs: list[Job] = []
    with transaction.atomic(savepoint=False), sent_ahead() if few else nullcontext():
        full = None if is_admitted else submissions_admit(wishes=[one.wish for one in checked], user=access.actor.user, now=now)
        if full is None:
            jobs = _write(checked, access, now, actor, news, due)
            if also is not None:
                also(jobs)
            news.publish()
            if any(job.state == JobState.QUEUED for job in jobs):
                lease_want()
    if full is not None:  # outside, so that a transaction of the caller's goes on
        with refusals_counted():
            raise full
    return jobs


def submissions_check(*, access: Access, descriptions: Sequence[Mapping[str, Any]], now: datetime) -> list[Checked]:
    """What submitting would check, and nothing written. With several descriptions paths begin with the place in the list."""
    found: list[Checked] = []
    faults: Faults = {}
    for place, judged in enumerate(submissions_judge(access=access, descriptions=descriptions, now=now)):
        if isinstance(judged, Checked):
            found.append(judged)
        else:
            prefix = f"[{place}]" if len(descriptions) > 1 else ""
            faults |= {_joined(prefix, path): messages for path, messages in judged.items()}
    if faults:
        raise ValidationError(faults)
    return found


def submissions_judge(*, access: Access, descriptions: Sequence[Any], now: datetime) -> list[Checked | Faults]:
    """What each of many descriptions would come to by itself: what may be submitted, or its faults. What they have in common is read once."""
    checker = _Checker(access, now, descriptions)
    judged: list[Checked | Faults] = []
    room = MOST_AT_ONCE
    for raw in descriptions:
        checked, wrong = checker.check(raw)
        if checked is not None and checked.count > room:
            checked, wrong = None, {"array": [f"At most {MOST_AT_ONCE} jobs at once; send it in a request of its own."]}
        room -= checked.count if checked is not None else 0
        judged.append(checked if checked is not None else wrong)
    return judged


def _joined(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path or "description"


class _Checker:
    """Checks descriptions one after the other; what they have in common is read once."""

    def __init__(self, access: Access, now: datetime, descriptions: Sequence[Any]) -> None:
        self.access = access
        self.now = now
        self.known = self._named_jobs(descriptions)
        named = _quotas_named(descriptions)
        levels, types, clusters, *nodes = together(
            LEVELS.asking(), TYPES.asking(), CLUSTERS.asking(), *(NODE_AND_DIVIDED.asking(path) for path in named)
        )
        self.kinds = Kinds(topology_now(levels))
        self.types = {kind.name: kind for kind in types}
        self.facts = _facts_now(clusters)
        self.clusters = clusters
        self._templates: dict[str, Template | None] = {}
        self._speeds: dict[str, TemplateSpeeds | None] = {}
        self._usual_classes: dict[str, str] = {}
        self._quotas: dict[str, tuple[QuotaNode | None, str]] = {path: self._judge_quota(path, rows) for path, rows in zip(named, nodes, strict=True)}

    def _named_jobs(self, descriptions: Sequence[Any]) -> dict[str, int]:
        """Keys of the jobs after which any of the descriptions is to come, as far as the reader may see them."""
        lists = [raw["after"] for raw in descriptions if isinstance(raw, Mapping) and isinstance(raw.get("after"), list)]
        named = {one["job"] for after in lists for one in after if isinstance(one, Mapping) and text_is_storable(one.get("job"))}
        if not named:
            return {}
        visible = Job.objects.filter(self.access.visible(Can.SEE, "quota__path"), public_id__among=named)
        return dict(visible.values_list("public_id", "id"))

    def check(self, raw: Any) -> tuple[Checked | None, Faults]:
        wrong = unstorable(raw)
        if any(TOO_DEEP in messages for messages in wrong.values()):
            return None, wrong
        raw, template, bound = self._with_template(raw)
        raw, given = self._with_speeds(raw, template)
        read = read_description(raw)
        if read.rest is None or (wrong and unstorable(read.rest.model_dump())):
            return None, read.faults | wrong
        checked, further = self._check(read.rest, "template" if given else "throughput")
        if read.description is not None and not bound and not wrong:
            return replace(checked, template=template, speeds=given) if checked is not None else None, further
        further = wrong | bound | further
        # What else is wrong is told in the same round.
        return None, read.faults | {path: messages for path, messages in further.items() if read.is_new(path)}

    def _with_template(self, raw: Any) -> tuple[Any, Template | None, Faults]:
        """What the template says where the description says nothing, which one it is, and what it forbids."""
        named = raw.get("template") if isinstance(raw, Mapping) else None
        if not named or not isinstance(named, str):
            return raw, None, {}
        if named not in self._templates:
            self._templates[named] = template_named(self.access, named)
        template = self._templates[named]
        if template is None:
            return raw, None, {"template": [f"There is no template {named}."]}
        whole = template.completed(raw)
        found = template.faults(whole)
        quota = whole.get("quota")
        if template.quota and isinstance(quota, str) and not is_within(quota, template.quota):
            found["template"] = [f"It is for {template.quota} and what lies below."]
        return whole, template, found

    def _with_speeds(self, raw: Any, template: Template | None) -> tuple[Any, int | None]:
        """With the speeds of its template where it states none, and their number. Types that the fleet no longer knows are left out."""
        if template is None or raw.get("throughput") is not None:
            return raw, None
        if template.key not in self._speeds:
            self._speeds[template.key] = speeds_given(template)
        given = self._speeds[template.key]
        known = {name: speed for name, speed in given.speeds.items() if name in self.types} if given is not None else {}
        return ({**raw, "throughput": known}, given.number) if given is not None and known else (raw, None)

    def _check(self, description: JobDescription, speeds_at: str) -> tuple[Checked | None, Faults]:
        faults: dict[str, list[str]] = defaultdict(list)
        quota, fault = self._quota(description.quota)
        if fault:
            faults["quota"].append(fault)
        if (usual := self._usual_classes.get(description.quota)) and "job_class" not in description.model_fields_set:
            description = description.model_copy(update={"job_class": usual})
        if not description.due_after(self.now):
            faults["deadline"].append("It lies in the past.")
        for number, role in enumerate(description.roles or ()):
            if role.desired is not None and description.job_class != JobClass.INFERENCE:
                faults[f"roles[{number}].desired"].append("Only a service, of the class inference, states it.")
        for path, message in deferring_faults(description.defer, description.job_class, description.deadline, description.estimate_s).items():
            faults[path].append(message)
        self._check_types(description, faults)
        self._check_speeds(description, speeds_at, faults)
        kind = self._kind(description, faults)
        if kind is not None:
            self._check_backends(description, kind, faults)
        if quota is not None:
            self._check_secrets(description, quota.path, faults)
        after = self._after(description, faults)
        if faults or quota is None or kind is None:
            return None, dict(faults)
        return Checked(description, quota, kind, self._milli(kind), after), {}

    def _quota(self, path: str) -> tuple[QuotaNode | None, str]:
        if path not in self._quotas:
            self._quotas[path] = self._judge_quota(path, NODE_AND_DIVIDED(path))
        return self._quotas[path]

    def _judge_quota(self, path: str, rows: Sequence[tuple[Any, ...]]) -> tuple[QuotaNode | None, str]:
        if not rows or not self.access.can(Can.SEE, path):
            return None, f"There is no quota {path}.{self._quotas_meant(path)}"
        if not self.access.can(Can.SUBMIT, path):
            return None, f"You may not submit to {path}."
        *values, divided, usual = rows[0]
        self._usual_classes[path] = usual or ""
        if divided:
            return None, f"{path} has quotas below it; jobs belong to one of those."
        return QuotaNode.from_db(DEFAULT_DB_ALIAS, _NODE, values), ""

    def _quotas_meant(self, path: str) -> str:
        """Those where the reader may submit that have this name on their way, or one like it."""
        leaves = QuotaNode.objects.filter(self.access.visible(Can.SUBMIT, "path"), ~Exists(_below), archived_at__isnull=True)
        known = list(leaves.order_by("path").values_list("path", flat=True)[:MOST_QUOTAS_KNOWN])
        name = path.rsplit("/", 1)[-1].lower()
        near = [one for one in known if f"/{name}/" in f"/{one}/"] or get_close_matches(path, known, QUOTAS_NAMED, 0.8)
        return f" Did you mean {' or '.join(near[:QUOTAS_NAMED])}?" if name and near else ""

    def _check_types(self, description: JobDescription, faults: dict[str, list[str]]) -> None:
        named = [("gpu_types", description.gpu_types or [])]
        named += [(f"roles[{place}].gpu_types", role.gpu_types or []) for place, role in enumerate(description.roles or [])]
        named.append(("throughput", list(description.throughput or {})))
        for path, types in named:
            unknown = sorted(set(types) - self.types.keys())
            if unknown:
                known = ", ".join(sorted(self.types)) or "none yet"
                faults[path].append(f"The fleet knows no {', '.join(unknown)}; it knows {known}.")

    def _check_speeds(self, description: JobDescription, speeds_at: str, faults: dict[str, list[str]]) -> None:
        """A job that can run on no type that it accepts is refused where that is said: at the types that it names, or where its speeds come from."""
        speeds = description.throughput or {}
        for place, role in enumerate(roles_of(description.spec) if 0 in speeds.values() else ()):
            named = role.get("gpu_types") or ()
            accepted = list(named) or sorted(self.types)
            if not takes_gpus(role) or not accepted or any(speeds.get(name, 1) for name in accepted):
                continue
            own = description.roles is not None and description.roles[place].gpu_types
            path = f"roles[{place}].gpu_types" if own else "gpu_types" if named else speeds_at
            whose = "the speeds of its template are" if speeds_at == "template" else "its throughput is"
            if not faults[path]:
                faults[path].append(f"It can run on no type that it accepts: {whose} 0 on {', '.join(accepted)}.")

    def _kind(self, description: JobDescription, faults: dict[str, list[str]]) -> Kind | None:
        found = self.kinds.judge(description.spec, description.job_class, description.priority, description.preemptible_column)
        if isinstance(found, Kind):
            return found
        for fault in found:
            path = fault.path.removeprefix("$").removeprefix(".")
            if description.roles is None and path.startswith("roles[0]"):
                path = path.removeprefix("roles[0]").removeprefix(".") or "gpus"
            faults[path or "description"].append(f"{fault.message[:1].upper()}{fault.message[1:]}.")
        return None

    def _check_backends(self, description: JobDescription, kind: Kind, faults: dict[str, list[str]]) -> None:
        """Refused here is what no cluster's back-end could ever carry out."""
        if not self.facts:
            return
        spanning = [("topology", kind.placing), *((f"roles[{place}].topology", role.placing) for place, role in enumerate(kind.roles))]
        if not all(facts.spans_clusters for facts in self.facts.values()):
            for path, placing in spanning:
                if placing is not None and placing.span_clusters:
                    faults[f"{path}.span_clusters"].append("No back-end can run a part of a job whose other parts run on another cluster.")
        if kind.sharing == "mps" and not any(facts.runs_mps for facts in self.facts.values()):
            faults["sharing"].append("No cluster's back-end can share a GPU by MPS.")
        if kind.sharing == "mig" and not any(facts.creates_mig for facts in self.facts.values()):
            wanted = {role.mig for role in kind.roles if role.mig}
            there = set(MigInstance.objects.filter(removed_at__isnull=True, profile__in=wanted).values_list("profile", flat=True))
            if wanted - there or not wanted:
                faults["sharing"].append("No cluster's back-end can split GPUs, and none is split so.")

        if description.launch.image is not None and (fault := self._no_images(kind)):
            faults["launch.image"].append(fault)

    def _check_secrets(self, description: JobDescription, path: str, faults: dict[str, list[str]]) -> None:
        """Whether its queue may use each secret. A secret of another team and one that does not exist are refused in the same words."""
        named = sorted(set(description.launch.secrets.values()))
        if named and secrets_kept():
            unknown = [name for name in named if not secret_exists(name, team=path)]
            if unknown:
                faults["launch.secrets"].append(f"{path} has no secret {', '.join(unknown)}.")

    def _no_images(self, kind: Kind) -> str:
        """Why no cluster that could take a job runs its image, if none does."""
        able = [cluster for cluster, facts in self.facts.items() if facts.runs_images]
        if not able:
            return "No cluster's back-end runs images; without one it runs with what its nodes have."
        if len(able) == len(self.facts):
            return ""
        stated = [set(role.gpu_types) for role in kind.roles if role.gpu_types]
        if not stated:
            return ""
        there = set(Node.objects.filter(cluster__in=able, removed_at__isnull=True).values_list("gpu_type", flat=True))
        lacking = sorted(min((types for types in stated if not types & there), key=sorted, default=set()))
        without = sorted(cluster.name for cluster in self.clusters if cluster.pk not in able)
        there_only = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} only on {' and '.join(without)}"
        return f"{there_only}, which {'runs' if len(without) == 1 else 'run'} no images." if lacking else ""

    def _after(self, description: JobDescription, faults: dict[str, list[str]]) -> tuple[tuple[int, bool], ...]:
        if not description.after:
            return ()
        named = [one.job for one in description.after]
        keys = self.known
        for place, name in enumerate(named):
            if name not in keys:
                faults[f"after[{place}].job"].append(f"There is no job {name}.")
            elif name in named[:place]:
                faults[f"after[{place}].job"].append(f"{name} is named twice.")
        return tuple((keys[one.job], one.condition == "completed") for one in description.after if one.job in keys)

    def _milli(self, kind: Kind) -> int:
        """What the minimum of the gang is charged, on the accepted type where that is most."""
        return sum(role.least * self._worker_milli(role) for role in kind.roles)

    def _worker_milli(self, role: Role) -> int:
        if not role.parted:
            return 1000 * role.gpus
        if role.share_milli is not None:
            return role.devices * role.share_milli
        accepted = [self.types[name] for name in role.gpu_types if name in self.types] or list(self.types.values())
        if role.memory_mib is not None:
            smallest = min((kind.memory_mib for kind in accepted), default=0)
            return role.devices * min(1000, max(1, 1000 * role.memory_mib // smallest if smallest else 1000))
        charges = []
        for kind in accepted:
            board = board_of(kind.name)
            profile = board.profile(role.mig or "") if board is not None else None
            if board is not None and profile is not None:
                charges.append(board.charge_milli(profile))
        return role.devices * max(charges, default=1000)


def _facts_now(clusters: Sequence[Cluster]) -> dict[int, Facts]:
    """Of these alone: a process also remembers the back-ends of clusters that are no more."""
    known = backends_all(clusters)
    return {cluster.pk: known[cluster.pk].facts for cluster in clusters if cluster.pk in known}


def _quotas_named(descriptions: Sequence[Any]) -> list[str]:
    """Where they are to be submitted, as far as they say so themselves."""
    named = [raw.get("quota") for raw in descriptions if isinstance(raw, Mapping)]
    return [path for path in dict.fromkeys(path for path in named if isinstance(path, str)) if text_is_storable(path)]


def _write(checked: Sequence[Checked], access: Access, now: datetime, actor: Actor, news: News, due: Due | None) -> list[Job]:
    counts = [one.count for one in checked]
    deferrals = _deferrals(checked, now)
    rows = [
        (one, _job(one, place, access, now, due, deferrals.get(id(one))))
        for one, count in zip(checked, counts, strict=True)
        for place in range(count)
    ]
    jobs = [job for _, job in rows]
    # From here to the end everybody else who submits waits for us: what can be done or asked before it is.
    is_wanted, keys = happening_wanted(Happened.SUBMITTED), keys_ahead(Job, len(jobs))
    _name(rows)
    objects_insert(jobs, keys=keys())
    marks_write(jobs)
    events = ((job.pk, now, job.state, _cause(one.description, due), actor.name) for one, job in rows)
    rows_insert(JobEvent, ("job_id", "at", "to_state", "cause", "actor_name"), events)
    if told_of := [
        (job.pk, now, job.state, job.state, found.told, SYSTEM.name) for one, job in rows if (found := deferrals.get(id(one))) and found.to
    ]:
        rows_insert(JobEvent, ("job_id", "at", "from_state", "to_state", "cause", "actor_name"), told_of)
    if is_wanted():
        told = (Event(job, None, now, "", job.state, _cause(one.description, due), actor.name, {}, job.revision) for one, job in rows)
        happenings_write(events=told, actor=actor)
    rows_insert(Dependency, ("job_id", "on_id", "if_completed"), ((job.pk, on, completed) for one, job in rows for on, completed in one.after))
    place, entries = 0, []
    for one, count in zip(checked, counts, strict=True):
        first, last = rows[place][1], rows[place + count - 1][1]
        place += count
        after = {"name": one.description.name, "class": one.description.job_class, "gpus_milli": one.gpus_milli, "state": first.state}
        after |= {"schedule": due.schedule, "due_at": due.at.isoformat()} if due else {}
        after |= {"array": first.array, "last": last.public_id} if count > 1 else {}
        entries.append(audit_entry(actor=actor, action="job.create", kind="job", object_id=first.public_id, quota=one.quota, after=after))
    audit_write(entries=entries)
    news.add("jobs", *(job.pk for job in jobs))
    news.add("overview", 1)
    return jobs


def _name(rows: Sequence[tuple[Checked, Job]]) -> None:
    """Give each job its public id, and each array its own."""
    for (_, job), name in zip(rows, public_ids("j", len(rows)), strict=True):
        job.public_id = name
    arrays = [one for one, job in rows if job.array_index == 0]
    if not arrays:
        return
    names = iter(public_ids("a", len(arrays)))
    array = ""
    for _, job in rows:
        if job.array_index is not None:
            array = next(names) if job.array_index == 0 else array
            job.array = array


def _cause(description: JobDescription, due: Due | None) -> str:
    done = "Kept as a draft" if description.draft else "Submitted"
    if due is not None:
        done += f" by the schedule {due.schedule}, due {due.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{done}."
    return f"{done} by the template {description.template}."[:300] if description.template else f"{done}."


def _deferrals(checked: Sequence[Checked], now: datetime) -> dict[int, Deferral]:
    """To which hour each is deferred, where nothing else holds it back: what is held or waits for other jobs is judged once it no longer is."""
    asked = [one for one in checked if one.description.defer and not (one.description.draft or one.description.hold or one.after)]
    tariffs = Tariffs(now)
    return {id(one): found for one in asked if (found := deferral_of(one, tariffs, now)) is not None}


def deferral_of(checked: Checked, tariffs: Tariffs, now: datetime) -> Deferral | None:
    """To which hour it would be deferred; None: it is not deferrable."""
    said = checked.description
    if said.defer is None or said.deadline is None or said.estimate_s is None:
        return None
    wanted = Wanted(said.defer, said.spec, checked.gpus_milli, said.estimate_s, said.limit_s, said.not_before, said.deadline)
    return deferral_judge(wanted, tariffs, now=now)


def _job(checked: Checked, place: int, access: Access, now: datetime, due: Due | None, deferral: Deferral | None) -> Job:
    said = checked.description
    launch = said.launch_column
    own: dict[str, str] = {}
    if said.array is not None:
        own = said.array.own(place)
        launch["env"] = {**launch.get("env", {}), "GPUFLEET_ARRAY_INDEX": str(place), **own}
    if due is not None:
        launch["env"] = {**launch.get("env", {}), DUE_AT: f"{due.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    return Job(
        name=f"{said.name}[{place}]"[:120] if said.array else said.name,
        quota=checked.quota,
        owner=access.actor.user,
        job_class=said.job_class,
        priority=said.priority,
        preemptible=said.preemptible_column,
        state=JobState.DRAFT if said.draft else JobState.QUEUED,
        state_since=now,
        submitted_at=now,
        spec=said.spec,
        gpus_milli=checked.gpus_milli,
        estimate_seconds=said.estimate_s,
        limit_seconds=said.limit_s,
        labels=dict(said.labels),
        cost_centre=said.cost_centre,
        launch=launch,
        not_before=said.not_before,
        deadline=said.deadline,
        defer=said.defer,
        deferred_to=deferral.to if deferral else None,
        deferral=deferral.as_json() if deferral else None,
        held_at=now if said.hold else None,
        array_index=place if said.array else None,
        parameters=own,
        template=checked.template.key if checked.template else None,
        template_version=checked.template.version if checked.template else None,
        template_speeds=checked.speeds,
        schedule=due.schedule if due else None,
        due_at=due.at if due else None,
        retry_limit=said.retries,
    )
