"""The lists of the tree, people, tokens and audit entries, stated once for pages, files and the API."""

from collections.abc import Sequence

from django.db.models import Q
from django.utils import timezone

from gpufleet.core.models import User
from gpufleet.core.tables import Choice, Column, Flag, Moment, Table, Text
from quotas.chargeback.exports import gpu_hours
from quotas.models import ChangeState, NodeKind, Phase, QuotaChange, QuotaNode, QuotaShare, Role, ShareClass
from quotas.permissions import at_or_below
from quotas.presenters import AuditLine
from quotas.selectors.audit import audit_below
from quotas.selectors.ledger import ledger_below


def _types() -> list[tuple[str, str]]:
    named = QuotaShare.objects.order_by("gpu_type").values_list("gpu_type", flat=True).distinct()
    return [(gpu_type, gpu_type) for gpu_type in named]


NODES = Table(
    name="quotas",
    noun="node",
    columns=(Column("path", "Node", sort="path"),),
    default_sort="path",
    search=("path", "title", "cost_centre", "public_id"),
    filters=(
        Choice("kind", "Kind", NodeKind.choices),
        Choice("gpu", "GPU type", _types, apply=lambda types: Q(pk__in=QuotaShare.objects.filter(gpu_type__in=types).values("node"))),
        Text("cost-centre", "Cost centre", "cost_centre"),
        Flag("archived", "Archived", Q(archived_at__isnull=False)),
    ),
    example="vision kind:team archived:yes",
    shown_by="quotas/_rows.html",
    empty="No quota tree yet. It guarantees GPUs to parts of the organisation, and jobs are charged to its leaves.",
    empty_href="/quotas/new/",
    empty_action="Create the quota tree",
)

PEOPLE = Table(
    name="people",
    noun="person",
    plural="people",
    columns=(
        Column("name", "Name", "__str__", sort=("display_name", "username"), cell="""<a href="{% url 'person' row.public_id %}">{{ row }}</a>"""),
        Column("username", "User name", sort="username"),
        Column("email", "E-mail", cell="{{ row.email|default:'–' }}", sort="email"),
        Column("state", "State", "is_active", cell="{% if row.is_active %}{% status 'active' %}{% else %}{% status 'inactive' %}{% endif %}"),
        Column("roles", "Roles you manage", "role_count", sort="role_count", numeric=True, most_first=True),
        Column("last", "Last sign-in", "last_login", sort="last_login", most_first=True, cell="{{ row.last_login|moment }}"),
    ),
    default_sort="name",
    search=("username", "display_name", "email"),
    filters=(
        Flag("active", "State", Q(is_active=True), yes="Active", no="Inactive"),
        Choice("role", "Role", Role.choices, apply=lambda roles: Q(pk__in=User.objects.filter(role_bindings__role__in=roles).values("pk"))),
    ),
    libraries=("shell",),
    empty="No people yet. They appear with their first sign-in.",
)


def _states(chosen: Sequence[str]) -> Q:
    moment = timezone.now()
    states = {
        "valid": Q(revoked_at__isnull=True, expires_at__gt=moment),
        "expired": Q(revoked_at__isnull=True, expires_at__lte=moment),
        "revoked": Q(revoked_at__isnull=False),
    }
    condition = Q(pk__in=[])
    for state in chosen:
        condition |= states[state]
    return condition


TOKENS = Table(
    name="tokens",
    noun="token",
    columns=(
        Column("name", "Name", sort="name"),
        Column("owner", "Owner", "owner", sort="owner__username"),
        Column("prefix", "Begins with", cell="<code>gf_{{ row.prefix }}_…</code>"),
        Column("scopes", "Scopes", lambda row: " ".join(row.scopes), cell="{{ row.scopes|join:', ' }}"),
        Column("subtree", "Subtree", "node", cell="{% if row.node %}{{ row.node.path }}{% else %}all of its owner's{% endif %}"),
        Column("made", "Created", "created_at", sort="created_at", most_first=True, cell="{{ row.created_at|moment }}"),
        Column("expires", "Expires", "expires_at", sort="expires_at", cell="{{ row.expires_at|moment }}"),
        Column("used", "Last used", "last_used_at", sort="last_used_at", most_first=True, cell="{{ row.last_used_at|moment }}"),
        Column(
            "state",
            "State",
            "state",
            cell="""{% if row.state == "valid" %}{% status "active" "Valid" %}{% else %}{% status row.state %}{% endif %}""",
        ),
        Column(
            "actions",
            "Actions",
            cell="""{% if row.state != "revoked" %}<a class="btn btn-small" href="{% url 'token-revoke' row.public_id %}"
            aria-label="Revoke {{ row.name }}">Revoke</a>{% endif %}""",
            in_file=False,
        ),
    ),
    default_sort="-made",
    search=("name", "owner__username", "prefix"),
    filters=(Choice("state", "State", (("valid", "Valid"), ("expired", "Expired"), ("revoked", "Revoked")), apply=_states),),
    libraries=("shell",),
    empty="No tokens yet. A program that calls the API needs one.",
    empty_href="/tokens/new/",
    empty_action="New token",
)


KINDS = (
    ("quota", "Quota node"),
    ("role", "Role"),
    ("person", "Person"),
    ("token", "Token"),
    ("node", "Node"),
    ("gpu", "GPU"),
    ("cluster", "Cluster"),
    ("import", "Import"),
    ("installation", "Installation"),
    ("job", "Job"),
    ("webhook", "Webhook"),
    ("reservation", "Reservation"),
    ("budget", "Budget"),
    ("rate_card", "Rate card"),
    ("quota_change", "Change of the tree"),
    ("charge_month", "Month of costs"),
    ("page", "Export"),
)


def _of_node(path: str) -> Q:
    """Changes that concern a node or one below it."""
    path = path.strip("/")
    nodes = QuotaNode.objects.filter(at_or_below(path))
    return Q(pk__in=QuotaChange.nodes.through.objects.filter(quotanode__in=nodes.values("pk")).values("quotachange_id"))


CHANGES = Table(
    name="quota-changes",
    noun="change",
    columns=(
        Column(
            "title",
            "Change",
            "title",
            cell="""<a href="{% url 'quota-change' row.public_id %}">{{ row.title }}</a> <span class="soft">{{ row.public_id }}</span>""",
        ),
        Column("id", "Id", "public_id", on_page=False),
        Column("state", "State", "state", sort="state", cell="{% status row.state %}"),
        Column("edits", "Edits", lambda row: len(row.edits), cell="{{ row.edits|length }}", numeric=True),
        Column("author", "Author", "author_name", sort="author_name"),
        Column("approver", "Approver", "approver_name", cell="{{ row.approver_name|default:'–' }}"),
        Column("reason", "Reason", "reason", cell="{{ row.reason|default:'–'|truncatechars:80 }}"),
        Column("apply_at", "Takes effect", "apply_at", cell="{{ row.apply_at|moment:'absolute' }}"),
        Column("applied", "Applied", "applied_at", sort="applied_at", most_first=True, cell="{{ row.applied_at|moment:'absolute' }}"),
        Column("changed", "Updated", "changed_at", sort=("changed_at", "id"), most_first=True, cell="{{ row.changed_at|moment }}"),
    ),
    default_sort="-changed",
    search=("title", "public_id", "reason", "author_name"),
    filters=(
        Choice("state", "State", [one for one in ChangeState.choices if one[0] != ChangeState.PREVIEW]),
        Text("team", "Team", apply=_of_node),
        Moment("from", "From", "changed_at"),
        Moment("to", "To", "changed_at", until=True),
    ),
    libraries=("shell",),
    empty="No changes yet. Edit a node, and choose Preview.",
    empty_next=("/quotas/", "Quotas"),
    row_key="public_id",
    row_field="public_id",
)


AUDIT = Table(
    name="audit",
    noun="entry",
    plural="entries",
    columns=(
        Column("at", "When", "entry.at", sort=("at", "id"), most_first=True, cell="{{ row.entry.at|moment:'absolute' }}"),
        Column("actor", "Actor", "entry.actor_name", sort="actor_name"),
        Column("via", "By way of", "entry.via"),
        Column(
            "action", "Action", "entry.action", sort="action", cell="""<a href="{% url 'audit-entry' row.entry.pk %}">{{ row.entry.action }}</a>"""
        ),
        Column("object", "Object", "entry.object_id", cell="{{ row.entry.object_kind }} <code>{{ row.entry.object_id }}</code>"),
        Column(
            "subtree",
            "Subtree",
            "entry.quota_path",
            cell="{% if row.entry.quota_path %}{{ row.entry.quota_path|team }}{% else %}whole fleet{% endif %}",
            sort="quota_path",
        ),
        Column("changes", "Change", "summary", cell="<span class=breaks>{{ row.summary|truncatechars:110 }}</span>"),
        Column("reason", "Reason", "entry.reason", cell="{{ row.entry.reason|default:'–'|truncatechars:60 }}"),
        Column("request", "Request", "entry.request_id", on_page=False),
    ),
    default_sort="-at",
    search=("actor_name", "action", "object_id", "reason", "quota_path", "request_id"),
    filters=(
        Text("actor", "Actor", "actor_name"),
        Text("action", "Action", "action", lookup="istartswith"),
        Choice("kind", "Object", KINDS, "object_kind"),
        Text("subtree", "Subtree", apply=audit_below),
        Moment("from", "From", "at"),
        Moment("to", "To", "at", until=True),
    ),
    libraries=("shell",),
    empty="No change yet. Each change of the console is recorded here.",
    empty_next=("/quotas/", "Quotas"),
    presented=lambda entries: [AuditLine(entry) for entry in entries],
)


# Its rows are presented for a span: `ledger_lines`.
LEDGER = Table(
    name="ledger",
    noun="entry",
    plural="entries",
    columns=(
        Column("job", "Job", "entry.job", cell="""<a href="{% url 'job' row.entry.job %}">{{ row.entry.job }}</a>"""),
        Column(
            "worker",
            "Worker",
            lambda row: f"{row.entry.role} {row.entry.worker}",
            cell="""{{ row.entry.role }} {{ row.entry.worker }}{% if row.entry.attempt_number > 1 %}
            <span class="soft">attempt {{ row.entry.attempt_number }}</span>{% endif %}""",
            optional=True,
        ),
        Column("attempt", "Attempt", "entry.attempt_number", on_page=False),
        Column("team", "Team", "entry.quota_path", cell="{{ row.entry.quota_path|team }}"),
        Column("owner", "Owner", "entry.owner", cell="{{ row.entry.owner|default:'–' }}"),
        Column("type", "GPU type", "entry.gpu_type", cell="<span class=nowrap>{{ row.entry.gpu_type }}</span>"),
        Column("class", "Class", "entry.share_class", cell="{{ row.entry.get_share_class_display }}"),
        Column("phase", "Phase", "entry.phase", cell="{{ row.entry.get_phase_display }}"),
        Column("gpus", "GPUs", lambda row: row.entry.gpu_milli / 1000, cell="{{ row.entry.gpu_milli|gpus }}", numeric=True),
        Column("from", "From", "entry.since", sort=("since", "id"), most_first=True, cell="{{ row.entry.since|moment:'absolute' }}"),
        Column("to", "To", "entry.until", cell="{% if row.entry.until %}{{ row.entry.until|moment:'absolute' }}{% else %}now{% endif %}"),
        Column(
            "used",
            "GPU-hours",
            lambda row: gpu_hours(row.milli_millis),
            cell="{{ row.milli_millis|hours_milli }}",
            numeric=True,
            hint="Within the time that is filtered by; 0 while starting",
        ),
        Column("milli_millis", "Milli-GPU-milliseconds", "milli_millis", on_page=False),
        Column("node", "Node", "entry.node", optional=True),
        Column("cluster", "Cluster", "entry.cluster", optional=True),
        Column("tier", "Tier", "entry.tier", optional=True),
        Column("pool", "Pool", "entry.pool", cell="{{ row.entry.pool|default:'–' }}", optional=True),
        Column("cost_centre", "Cost centre", "entry.cost_centre", cell="{{ row.entry.cost_centre|default:'–' }}", optional=True),
    ),
    default_sort="-from",
    filters=(
        Text("team", "Team", apply=ledger_below, hint="Path of a node, with all below it"),
        Text("job", "Job", "job", lookup="exact", hint="Such as j-17"),
        Text("type", "GPU type", "gpu_type", lookup="iexact"),
        Choice("class", "Class", ShareClass.choices, "share_class"),
        Choice("phase", "Phase", Phase.choices),
        Text("owner", "Owner", "owner", lookup="iexact"),
        Text("node", "Node", "node", lookup="exact"),
        Text("cost_centre", "Cost centre", "cost_centre", lookup="exact"),
        Text("tier", "Tier", "tier", lookup="exact", hint="Such as whole or mig:1g.10gb"),
        Moment("from", "From", "until", open_ended=True),
        Moment("to", "To", "since", until=True),
    ),
    libraries=("shell", "costs"),
    empty="Nothing was held in this time.",
    empty_next=("/jobs/", "Jobs"),
    row_key="entry.pk",
    row_field="id",
    example="team:acme/research class:borrowed",
    rarely=("phase", "owner", "node", "cost_centre", "tier"),
)
