"""Which templates somebody may use: the shipped ones, and those of nodes that lie above or below where he may submit, or that he sees."""

from dataclasses import dataclass

from django.core import signing
from django.core.exceptions import ValidationError
from django.db.models import Max, Q
from django.http import Http404

from quotas.permissions import Access, Can, is_within
from scheduler.jobs.template_rules import SHIPPED, SHIPPED_BY_REF, Template
from scheduler.models import Job, JobTemplate, JobTemplateVersion

_SIGNER = signing.Signer(salt="gpufleet.templates")


def templates_visible(access: Access) -> list[Template]:
    """Those of subtrees first, by their names; then the shipped ones."""
    versions = list(_latest(access))
    return [*(_template(version) for version in versions), *SHIPPED]


def templates_page(access: Access, *, size: int | None = None, after: str = "") -> tuple[list[Template], str]:
    """A part of those, from the place `after` on, and the place behind it: empty at the end."""
    found = templates_visible(access)
    if after:
        try:
            place = tuple(_SIGNER.unsign_object(after))
        except (signing.BadSignature, TypeError) as fault:
            raise ValidationError({"after": ["The place in the list can't be read."]}) from fault
        found = [one for one in found if _place(one) > place]
    rows = found[:size]
    return rows, _SIGNER.sign_object(_place(rows[-1])) if len(found) > len(rows) else ""


def _place(one: Template) -> tuple[int, str, str]:
    """Where it stands in the list, in a form that stays in order when others come and go."""
    return (0, one.title, one.ref) if one.quota else (1, f"{SHIPPED.index(one):04}", one.ref)


def template_named(access: Access, ref: str) -> Template | None:
    """By what a description says: `name` for a shipped one, `path:name` for one of a subtree, `@3` behind for a version of it."""
    if ref in SHIPPED_BY_REF:
        return SHIPPED_BY_REF[ref]
    named, _, number = ref.partition("@")
    path, colon, name = named.rpartition(":")
    if not colon or (number and not (number.isascii() and number.isdigit())):
        return None
    rows = JobTemplateVersion.objects.filter(template__node__path=path, template__name=name, template__archived_at__isnull=True)
    rows = rows.filter(number=int(number)) if number else rows.order_by("-number")
    version = rows.select_related("template__node").first()
    return _template(version) if version is not None and _is_visible(access, path) else None


def template_kept(job: Job) -> Template | None:
    """The version of the template that a job began with; None where it began with none."""
    if not job.template:
        return None
    if job.template in SHIPPED_BY_REF:
        return SHIPPED_BY_REF[job.template]
    rows = JobTemplateVersion.objects.filter(template__public_id=job.template, number=job.template_version or 0)
    version = rows.select_related("template__node").first()
    return None if version is None else _template(version)


def template_versions(access: Access, ref: str) -> list[JobTemplateVersion]:
    """All versions of one of a subtree, the newest first. 404 for others."""
    path, _, name = ref.partition("@")[0].rpartition(":")
    if not path or not _is_visible(access, path):
        raise Http404
    found = JobTemplateVersion.objects.filter(template__node__path=path, template__name=name, template__archived_at__isnull=True)
    versions = list(found.select_related("template__node").order_by("-number"))
    if not versions:
        raise Http404
    return versions


@dataclass(frozen=True, slots=True)
class Origin:
    """The template that a job began with, as it is named now. `ref` is empty where the reader may not begin with it, or nobody can any more."""

    name: str
    version: int
    newest: int
    ref: str = ""

    @property
    def exact(self) -> str:
        return f"{self.ref}@{self.version}" if ":" in self.ref else self.ref


def template_of(access: Access, job: Job) -> Origin | None:
    """What a job was made from. One query, none for a shipped template."""
    if job.template is None:
        return None
    version = job.template_version or 1
    if job.template in SHIPPED_BY_REF:
        return Origin(SHIPPED_BY_REF[job.template].title, version, version, job.template)
    row = JobTemplate.objects.filter(public_id=job.template).select_related("node").annotate(newest=Max("versions__number")).first()
    if row is None:
        return Origin(job.template, version, version)
    can_be_named = row.archived_at is None and _is_visible(access, row.node.path)
    return Origin(row.name, version, row.newest or version, f"{row.node.path}:{row.name}" if can_be_named else "")


def may_edit_templates(access: Access, path: str) -> bool:
    return access.can(Can.MANAGE_JOBS, path) or access.can(Can.EDIT_QUOTA, path)


def template_places(access: Access) -> list[str]:
    """Where somebody may put templates: the topmost nodes."""
    return sorted({*access.paths(Can.MANAGE_JOBS), *access.paths(Can.EDIT_QUOTA)})


def _is_visible(access: Access, path: str) -> bool:
    return access.can(Can.SEE, path) or any(is_within(mine, path) for mine in access.paths(Can.SUBMIT))


def _latest(access: Access) -> list[JobTemplateVersion]:
    above = [mine[:end] for mine in access.paths(Can.SUBMIT) for end in [*(place for place, letter in enumerate(mine) if letter == "/"), len(mine)]]
    seen = JobTemplate.objects.filter(access.visible(Can.SEE, "node__path") | Q(node__path__in=above), archived_at__isnull=True)
    newest = seen.annotate(newest=Max("versions__number")).values_list("id", "newest")
    wanted = dict(newest)
    rows = (
        JobTemplateVersion.objects.filter(template__in=wanted)
        .select_related("template__node")
        .order_by("title", "template__node__path", "template__name")
    )
    return [row for row in rows if wanted[row.template_id] == row.number]


def _template(version: JobTemplateVersion) -> Template:
    path = version.template.node.path
    return Template(
        ref=f"{path}:{version.template.name}",
        title=version.title,
        about=version.about,
        quota=path,
        version=version.number,
        body=version.body,
        locked=tuple(version.locked),
        limits=version.limits,
        public_id=version.template.public_id,
    )
