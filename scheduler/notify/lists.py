"""The lists of webhooks and of what they were sent, stated once for pages, files and the API."""

from django.db.models import Q

from gpufleet.core.tables import Choice, Column, Flag, Moment, Table, Text
from scheduler.models import DeliveryState, SendingState, WebhookState
from scheduler.notify.happenings import HOOK_KINDS, LABELS, TEST
from scheduler.services.notify.notices import KIND_LABELS, WAY_LABELS, Way

KIND_CHOICES = tuple((kind.value, kind.value) for kind in HOOK_KINDS)
DELIVERY_KINDS = (*KIND_CHOICES, (TEST, LABELS[TEST]))

WEBHOOKS = Table(
    name="webhooks",
    noun="webhook",
    columns=(
        Column("name", "Name", sort="name", cell="""<a href="{% url 'webhook' row.public_id %}">{{ row.name }}</a>"""),
        Column("id", "Id", "public_id", on_page=False),
        Column("node", "Jobs of", "node.path", sort="node__path", cell="{{ row.node.path|path }}"),
        Column("url", "Address", "url", cell="<code>{{ row.url|truncatechars:60 }}</code>"),
        Column("kinds", "Told of", lambda row: " ".join(row.kinds), cell="scheduler/_hook_kinds.html"),
        Column("state", "State", "state", sort="state", cell="scheduler/_hook_state.html"),
        Column("author", "Made by", "author_name", sort="author_name"),
        Column("made", "Created", "created_at", sort="created_at", most_first=True, cell="{{ row.created_at|moment }}"),
    ),
    default_sort="name",
    search=("name", "url", "node__path", "public_id"),
    filters=(Choice("state", "State", WebhookState.choices),),
    empty="No webhooks yet. A webhook reports job events to a chat, a pager or a program.",
    empty_href="/webhooks/new/",
    empty_action="New webhook",
)

DELIVERIES = Table(
    name="deliveries",
    noun="delivery",
    plural="deliveries",
    columns=(
        Column(
            "made",
            "Created",
            "made_at",
            sort="id",
            most_first=True,
            cell="""<a href="{% url 'delivery' row.hook.public_id row.public_id %}">
            {{ row.made_at|moment }}</a>""",
        ),
        Column("id", "Id", "public_id", on_page=False),
        Column("event", "Event", "event", on_page=False),
        Column("kind", "Kind", "kind"),
        Column("job", "Job", "job", cell="{% if row.job %}<a href=\"{% url 'job' row.job %}\">{{ row.job }}</a>{% else %}–{% endif %}"),
        Column("state", "State", "state", sort="state", cell="{% status row.state row.get_state_display %}"),
        Column("status", "Answer", "status", numeric=True),
        Column("duration", "Took (ms)", "duration_ms", numeric=True),
        Column("attempts", "Tries", "attempts", numeric=True),
        Column("fault", "Problem", "fault", cell="{{ row.fault|truncatechars:80|default:'–' }}"),
    ),
    default_sort="-made",
    search=("event", "job", "public_id"),
    filters=(
        Choice("state", "State", DeliveryState.choices),
        Choice("kind", "Kind", DELIVERY_KINDS),
        Text("job", "Job", "job", lookup="iexact"),
        Moment("from", "From", "made_at"),
        Moment("to", "To", "made_at", until=True),
    ),
    empty="Nothing was sent yet. Send a test, or wait for the first event.",
)

NOTICE_KINDS = tuple(KIND_LABELS.items())
NOTICES = Table(
    name="notices",
    noun="notification",
    columns=(
        Column("at", "When", "at", sort="id", most_first=True, cell="{{ row.at|moment }}"),
        Column("title", "Event", "title", cell="scheduler/_notice.html"),
        Column("text", "Why", "text", cell="{{ row.text|default:'–' }}"),
        Column("kind", "Kind", "kind", on_page=False),
        Column("job", "Job", "job", cell="scheduler/_notice_job.html"),
        Column("link", "Page", "link", on_page=False),
        Column("count", "Count", "count", numeric=True, hint="How many it stands for"),
        Column("read", "Read", "read_at", cell="scheduler/_notice_read.html"),
    ),
    default_sort="-at",
    search=("title", "text", "job"),
    styled=True,
    filters=(
        Flag("unread", "Unread", Q(read_at__isnull=True), yes="Unread", no="Read"),
        Choice("kind", "Kind", NOTICE_KINDS),
        Moment("from", "From", "at"),
        Moment("to", "To", "at", until=True),
    ),
    empty="No notifications yet. Events of your jobs and of jobs you follow appear here.",
    empty_next=("/jobs/", "Jobs"),
)

SENDINGS = Table(
    name="sendings",
    noun="message",
    columns=(
        Column("made", "Created", "made_at", sort="id", most_first=True, cell="{{ row.made_at|moment }}"),
        Column("title", "Event", "notice.title"),
        Column("way", "Way", "way"),
        Column("state", "State", "state", sort="state", cell="{% status row.state row.get_state_display %}"),
        Column("attempts", "Tries", "attempts", numeric=True),
        Column("fault", "Problem", "fault", cell="{{ row.fault|default:'–' }}"),
    ),
    default_sort="-made",
    filters=(
        Choice("state", "State", SendingState.choices),
        Choice("way", "Way", ((Way.EMAIL.value, WAY_LABELS[Way.EMAIL]), (Way.WEBHOOK.value, WAY_LABELS[Way.WEBHOOK]))),
    ),
    empty="Nothing was sent by e-mail or to a webhook of yours.",
    empty_next=("/notifications/settings/", "Your notifications"),
)
