"""The tags that every template uses, so that a state, a time, a sum or a count looks and reads the same on each page."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import ceil
from typing import Any, NamedTuple

from django import template
from django.conf import settings
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from gpufleet.core.times import written
from gpufleet.core.undo import Undo, undo_of
from gpufleet.core.zones import zones_offered

register = template.Library()

NOTHING = "–"
ANY_MOMENT = "any moment"
THIN = "\N{NO-BREAK SPACE}"
LATE_S = 120  # so long what is due may come at any moment
SOON_S = 5  # nearer than this no number is told
CURRENCY_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}


class Look(NamedTuple):
    """How a state is shown: its tone (a colour), its icon (a shape) and its word. No two of the three are ever the only sign."""

    tone: str
    icon: str
    word: str


# Health, job states, allocation, modes, roles and the states of tokens share this one table, so that a word looks the same everywhere.
LOOKS: dict[str, Look] = {
    "healthy": Look("good", "check", "Healthy"),
    "suspect": Look("warn", "alert", "Suspect"),
    "draining": Look("move", "drain", "Draining"),
    "drained": Look("rest", "pause", "Drained"),
    "repairing": Look("move", "wrench", "Repairing"),
    "burn_in": Look("move", "flame", "Burn-in"),
    "down": Look("bad", "cross", "Down"),
    "draft": Look("rest", "pencil", "Draft"),
    "queued": Look("rest", "clock", "Queued"),
    "reserved": Look("move", "bookmark", "Reserved"),
    "starting": Look("move", "spin", "Starting"),
    "running": Look("good", "play", "Running"),
    "checkpointing": Look("move", "save", "Checkpointing"),
    "preempted": Look("warn", "eject", "Preempted"),
    "resuming": Look("move", "spin", "Resuming"),
    "degraded": Look("warn", "alert", "Degraded"),
    "completed": Look("good", "check", "Completed"),
    "done": Look("good", "check", "Done"),
    "writing": Look("move", "spin", "Writing"),
    "failed": Look("bad", "cross", "Failed"),
    "cancelled": Look("rest", "stop", "Cancelled"),
    "stopping": Look("move", "save", "Stopping"),
    "lost": Look("bad", "alert", "Lost"),
    "closed": Look("rest", "check", "Closed"),
    "complete": Look("good", "check", "Complete"),
    "partial": Look("warn", "half", "Partial"),
    "deciding": Look("good", "spin", "Deciding"),
    "watching": Look("good", "eye", "Watching"),
    "paused": Look("warn", "pause", "Paused"),
    "overdue": Look("bad", "alert", "Overdue"),
    "never": Look("rest", "circle", "Not started yet"),
    "free": Look("rest", "circle", "Free"),
    "allocated": Look("good", "disc", "Allocated"),
    "shared": Look("good", "half", "Shared"),
    "idle": Look("warn", "clock", "Idle"),
    "whole": Look("rest", "disc", "Whole"),
    "mig": Look("rest", "slices", "MIG"),
    "mps": Look("rest", "half", "MPS"),
    "timeslice": Look("rest", "clock", "Time slice"),
    "spare": Look("rest", "bookmark", "Spare"),
    "viewer": Look("rest", "eye", "Viewer"),
    "submitter": Look("rest", "play", "Submitter"),
    "team_lead": Look("good", "people", "Team lead"),
    "quota_admin": Look("good", "tree", "Quota admin"),
    "operator": Look("good", "wrench", "Operator"),
    "finance": Look("good", "coin", "Finance"),
    "superuser": Look("move", "key", "Superuser"),
    "ended": Look("rest", "stop", "Ended"),
    "submitted": Look("good", "check", "Submitted"),
    "delayed": Look("warn", "clock", "Delayed"),
    "skipped": Look("rest", "right", "Left out"),
    "missed": Look("warn", "clock", "Missed"),
    "refused": Look("bad", "cross", "Refused"),
    "active": Look("good", "check", "Active"),
    "inactive": Look("rest", "stop", "Inactive"),
    "expiring": Look("warn", "clock", "Expires soon"),
    "expired": Look("rest", "clock", "Expired"),
    "revoked": Look("rest", "stop", "Revoked"),
    "archived": Look("rest", "stop", "Archived"),
    "removed": Look("rest", "stop", "Removed"),
    "added": Look("good", "plus", "Added"),
    "changed": Look("move", "pencil", "Changed"),
    "unchanged": Look("rest", "circle", "Unchanged"),
    "unknown": Look("rest", "question", "Unknown"),
    "waiting": Look("rest", "clock", "Waiting"),
    "delivered": Look("good", "check", "Delivered"),
    "parked": Look("bad", "cross", "Given up"),
    "dropped": Look("rest", "pause", "Left out"),
    "failing": Look("warn", "alert", "Failing"),
    "disabled": Look("bad", "stop", "Switched off"),
    "firing": Look("bad", "alert", "Firing"),
    "pending": Look("rest", "clock", "Pending"),
    "resolved": Look("good", "check", "Over"),
    "acknowledged": Look("warn", "eye", "Acknowledged"),
    "silenced": Look("rest", "pause", "Silenced"),
    "info": Look("rest", "circle", "Info"),
    "warning": Look("warn", "alert", "Warning"),
    "critical": Look("bad", "cross", "Critical"),
    "over": Look("warn", "alert", "Over"),
    "requested": Look("move", "clock", "Pending approval"),
    "approved": Look("good", "check", "Approved"),
    "denied": Look("rest", "cross", "Denied"),
    "proposed": Look("move", "clock", "Waiting for approval"),
    "scheduled": Look("move", "clock", "Scheduled"),
    "applied": Look("good", "check", "Applied"),
    "rejected": Look("rest", "cross", "Rejected"),
    "preview": Look("rest", "search", "Preview"),
    "withdrawn": Look("rest", "stop", "Withdrawn"),
    "shrinks": Look("warn", "eject", "Shrinks"),
    "waits": Look("rest", "clock", "Keeps waiting"),
    "borrows": Look("warn", "alert", "Becomes a borrower"),
    "guaranteed": Look("good", "check", "Becomes guaranteed"),
    "moves": Look("move", "right", "Moves"),
    "starts": Look("good", "play", "Starts"),
    "grows": Look("good", "plus", "Grows"),
    "stays": Look("good", "check", "No longer preempted"),
    "coming": Look("move", "clock", "Coming"),
    "past": Look("rest", "stop", "Over"),
    "released": Look("rest", "eject", "Released"),
    "within": Look("good", "check", "Within budget"),
    "warned": Look("warn", "alert", "Near its limit"),
    "stopped": Look("bad", "stop", "Used up"),
    "excepted": Look("warn", "clock", "Used up, with an exception"),
}


def look_of(value: object) -> Look:
    """The look of a state. A state that the table does not know still gets its word, in the quiet tone."""
    name = str(value)
    return LOOKS.get(name) or Look("rest", "circle", name.replace("_", " ").capitalize())


@register.simple_tag
def status(value: object, word: str = "") -> SafeString:
    """`{% status node.health %}`: icon, word and colour. `word` says it differently where the page's sentence needs that."""
    if value in (None, ""):
        return _nothing("Not known")
    look = look_of(value)
    html = '<span class="status tone-{}" data-status="{}"><i class="icon icon-{}" aria-hidden="true"></i>{}</span>'
    return format_html(html, look.tone, value, look.icon, word or look.word)


@register.simple_tag
def icon(name: str) -> SafeString:
    """`{% icon "search" %}`: a picture beside a word; by itself it says nothing to a screen reader."""
    return format_html('<i class="icon icon-{}" aria-hidden="true"></i>', name)


def _nothing(why: str) -> SafeString:
    return format_html('<span class="nothing" title="{}">{}</span>', why, NOTHING)


def relative(when: datetime, now: datetime) -> str:
    """`5 min ago`, `in 1 h 59 min`, as the browser's script and the command line say it too.

    What is past is told in one unit, rounded down. Somebody waits for what is to come: two units, and never sooner than it is.
    """
    if when > now:
        left = ceil((when - now).total_seconds())
        if left < SOON_S:
            return "in a moment"
        step = 1 if left < 60 else 60 if left <= 86_400 else 3600
        return f"in {duration(-(-left // step) * step)}"
    gone = int((now - when).total_seconds())
    if gone < SOON_S:
        return "just now"
    size, unit = next((size, unit) for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")) if gone >= size)
    return f"{gone // size:,}{THIN}{unit} ago"


def starts(when: datetime, now: datetime, window: tuple[datetime, datetime] | None = None) -> str:
    """How a predicted start stands: as a time range where there is a `window` that is not over, in UTC."""
    late = int((now - when).total_seconds())
    if late < 0:
        return f"starts {(window and _window_told(*window, now)) or relative(when, now)}"
    return f"starts {ANY_MOMENT}" if late <= LATE_S else f"late by {duration(late // 60 * 60)}"


def _window_told(earliest: datetime, latest: datetime, now: datetime) -> str:
    """`14:10–15:30 UTC`; `by 15:30 UTC` once its beginning is past. Empty where it is over or has no length."""
    earliest, latest, now = (one.astimezone(UTC).replace(second=0, microsecond=0) for one in (earliest, latest, now))
    if earliest >= latest or latest <= now:
        return ""
    told = f"by {_clock(latest, now)}" if earliest <= now else f"{_clock(earliest, now)}–{_clock(latest, earliest)}"
    return f"{told}{THIN}UTC"


def _clock(when: datetime, beside: datetime) -> str:
    """`14:10`; with its date where that is another day than the moment's beside it."""
    return f"{when:%H:%M}" if when.date() == beside.date() else f"{when.day}{THIN}{when:%b}{THIN}{when:%H:%M}"


@register.simple_tag
def start_told(when: datetime, window: tuple[datetime, datetime] | None = None) -> SafeString:
    """`{% start_told line.at line.window %}`: `moment:"start"` with the time range of the start, where one was predicted."""
    if window is None:
        return moment(when, "start")
    at, (earliest, latest) = when.astimezone(UTC), window
    shown, exact = starts(at, timezone.now(), window), [f"{one.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" for one in (at, earliest, latest)]
    html = '<time datetime="{}" data-moment="start" data-from="{}" data-until="{}" title="{}, between {} and {}">{}</time>'
    return format_html(html, *map(written, (at, earliest, latest)), *exact, shown)


@register.simple_tag
def zones() -> SafeString:
    """What a field with `list="zones"` offers; once a page."""
    return format_html(
        '<datalist id="zones">{}</datalist>', format_html_join("", '<option value="{}"></option>', ((zone,) for zone in zones_offered()))
    )


@register.filter
def undo(message: object) -> Undo | None:
    """What takes back the change that a message tells of."""
    return undo_of(message)


@register.filter
def moment(when: datetime | None, form: str = "relative") -> SafeString:
    """`{{ node.health_since|moment }}`: relative, the exact time on hover. `moment:"absolute"` writes the exact time, for logs;
    `moment:"minute"` the minute, for what nobody knows to the second; `moment:"ahead"` calls what was expected earlier `any moment`;
    `moment:"for"` says how long it has lasted: `for 5 min`;
    `moment:"start"` says how a predicted start stands: `starts in 16 min`, `starts any moment`, and two minutes on `late by 12 min`."""
    if when is None:
        return _nothing("Never")
    exact = when.astimezone(UTC)
    absolute = f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    forms = {"absolute": absolute, "minute": f"{exact:%Y-%m-%d %H:%M} UTC"}
    if form == "ahead" and exact <= timezone.now():
        forms["ahead"] = ANY_MOMENT
    if form == "start":
        forms["start"] = starts(exact, timezone.now())
    if form == "for" and (lasted := relative(exact, timezone.now())).endswith(" ago"):
        forms["for"] = f"for {lasted.removesuffix(' ago')}"
    shown = forms.get(form) or relative(exact, timezone.now())
    return format_html('<time datetime="{}" data-moment="{}" title="{}">{}</time>', written(exact), form, absolute, shown)


@register.filter
def is_past(when: datetime | None) -> bool:
    return when is not None and when <= timezone.now()


@register.filter
def path(value: str) -> SafeString:
    """A path that breaks behind its slashes, where it must."""
    steps = format_html_join(mark_safe("/<wbr>"), "{}", ((step,) for step in value.split("/")))
    return format_html('<span class="path">{}</span>', steps)


@register.filter
def team(value: str) -> SafeString:
    """A team by its own name, the end of its path; the whole path in the tooltip."""
    return format_html('<span class="team" title="{}">{}</span>', value, value.rpartition("/")[2])


@register.filter
def unbroken(text: str) -> str:
    """A head whose lines break between words alone, not at the hyphen of one."""
    if "-" not in text:
        return text
    words = (format_html('<span class="nowrap">{}</span>', word) if "-" in word else word for word in text.split(" "))
    return format_html("<span>{}</span>", format_html_join(" ", "{}", ((word,) for word in words)))


@register.filter
def gpus(milli: int | None) -> str:
    """Milli-GPU as GPUs: `12`, `0.5`, `1,024`."""
    return NOTHING if milli is None else f"{Decimal(milli) / 1000:,f}".rstrip("0").rstrip(".") if milli % 1000 else f"{milli // 1000:,}"


@register.filter
def gpus_tenths(milli: int | None) -> str:
    """Milli-GPU as GPUs in tenths, for figures that are read at a glance: `37.4`. Little is not nothing: `<0.1`."""
    if milli and 0 < milli < 100:
        return "<0.1"
    return NOTHING if milli is None else gpus(100 * round(milli / 100))


@register.filter
def gpu_word(milli: int | None) -> str:
    """What so many milli-GPU are called: `{{ 500|gpu_word }}` is `GPUs`."""
    return "GPU" if milli == 1000 else "GPUs"


@register.filter
def gpus_told(milli: int | None) -> str:
    """Milli-GPU in running text: `1 GPU`, `0.5 GPUs`, `1,024 GPUs`."""
    return f"{gpus(milli)} {gpu_word(milli)}"


@register.filter
def gpus_tenths_told(milli: int | None) -> str:
    """Milli-GPU in tenths in running text: `37.4 GPUs`."""
    told = gpus_tenths(milli)
    return f"{told} {'GPU' if told == '1' else 'GPUs'}"


@register.filter
def any_of(rows: Iterable[Any], names: str) -> bool:
    """Whether any of the rows has any of these attributes: a column that would be empty is left out."""
    return any(getattr(row, name) for row in rows for name in names.split())


@register.filter
def money(micros: int | None, decimals: int = 2) -> str:
    """Micro-units as money of the installation's currency: `$1,204.50`. `money:0` for round sums, `money:4` for rates."""
    if micros is None:
        return NOTHING
    sign = "−" if micros < 0 else ""
    amount = f"{Decimal(abs(micros)) / 1_000_000:,.{int(decimals)}f}"
    symbol = CURRENCY_SIGNS.get(settings.CURRENCY)
    return f"{sign}{symbol}{amount}" if symbol else f"{sign}{settings.CURRENCY}{THIN}{amount}"


@register.filter
def percent_of(part: int | float | None, whole: int | float | None) -> str:
    """`{{ used|percent_of:all }}`: whole percent. Neither 0 % nor 100 % is said of what is not quite so."""
    if part is None or not whole:
        return NOTHING
    share = part * 100 / whole
    if 0 < share < 1:
        return "<1%"
    if 99 < share < 100:
        return ">99%"
    return f"{share:.0f}%"


@register.filter
def bytes_told(size: int) -> str:
    """Bytes in the unit that reads best: `512 B`, `64 KiB`, `1.2 GiB`."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.{0 if size >= 10 * 1024**power else 1}f}".removesuffix(".0") + f"{THIN}{unit}"
    return f"{size}{THIN}B"


@register.filter
def memory(mib: int | float | None) -> str:
    """Mebibytes in the unit that reads best: `512 MiB`, `80 GiB`, `1.5 TiB`."""
    if mib is None:
        return NOTHING
    for size, unit in ((1024 * 1024, "TiB"), (1024, "GiB")):
        if mib >= size:
            return f"{mib / size:,.1f}".removesuffix(".0") + THIN + unit
    return f"{mib:,.0f}{THIN}MiB"


@register.filter
def duration(seconds: float | timedelta | None) -> str:
    """The two largest units: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    if seconds is None:
        return NOTHING
    left = int(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    if left < 60:
        return f"{left}{THIN}s"
    parts: list[tuple[int, str]] = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        count, left = divmod(left, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count:,}{THIN}{unit}" for count, unit in parts[:2] if count)


@register.simple_tag
def plural(count: int, one: str, many: str = "") -> str:
    """`{% plural 3 "GPU" %}` -> `3 GPUs`; `{% plural n "entry" "entries" %}` where an s is not enough."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@register.simple_tag
def bar(part: float | None, whole: float | None, label: str, tone: str = "used") -> SafeString:
    """A bar of `part` in `whole` without a style attribute; `label` is what a screen reader says before the share."""
    if part is None or not whole:
        return _nothing("No reading")
    return format_html(
        '<progress class="bar bar-{}" value="{}" max="{}" aria-label="{}" title="{}">{}</progress>',
        tone,
        min(part, whole),
        whole,
        label,
        percent_of(part, whole),
        percent_of(part, whole),
    )
