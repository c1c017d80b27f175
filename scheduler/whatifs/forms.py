"""The forms of the lab. In that of a what-if every field left empty is as today."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from quotas.forms import LengthField
from quotas.models import QuotaChange
from scheduler.engine.model.values import Settings
from scheduler.models import SweepAxis
from scheduler.sweeps.asking import MINUTES as SWEEP_MINUTES
from scheduler.sweeps.asking import (
    MOST_HOURS,
    MOST_POLICIES,
    MOST_SEEDS,
    MOST_VALUES,
    OFFERED,
    USUAL_MINUTES,
    USUAL_POLICIES,
    USUAL_SEEDS,
    Asked,
    values_of,
)
from scheduler.sweeps.points import SweepError
from scheduler.traces import MOST_OWN_DAYS
from scheduler.traces.rows import Shape, shape_of
from scheduler.whatifs.telling import value_told
from scheduler.whatifs.traces import KINDS, MOST_BYTES, MOST_FILES, MOST_JOBS
from scheduler.whatifs.wanted import DAYS, MINUTES, MOST_TRACE_HOURS, ORDERS, RULES, USUAL_DAYS, NodeKind, NodesThere, Rule, Wanted

SWITCH = {"on": True, "off": False}
NODES = "nodes:"


def rule_field(name: str, rule: Rule, settings: Settings, base: str) -> forms.Field:
    told = value_told(name, rule.read(settings))
    named: dict[str, Any] = {"label": rule.title, "required": False}
    if rule.choices:
        words = ORDERS if name == "order" else {word: word.capitalize() for word in rule.choices}
        return forms.ChoiceField(choices=[("", f"{base} ({told})"), *((word, words[word]) for word in rule.choices)], help_text=rule.help, **named)
    if rule.is_switch:
        return forms.ChoiceField(choices=[("", f"{base} ({told})"), ("on", "On"), ("off", "Off")], help_text=rule.help, **named)
    help_text = f"{rule.help} {base}: {told}."
    if rule.unit == "s":
        named.pop("required")
        return LengthField(help_text=help_text, **named)
    widget = forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"})
    return forms.FloatField(widget=widget, help_text=help_text, **named)


class WhatIfForm(forms.Form):
    days = forms.TypedChoiceField(label="Days", coerce=int, choices=[(one, "The last day" if one == 1 else f"The last {one} days") for one in DAYS])
    minutes = forms.TypedChoiceField(
        label="Takes at most",
        required=False,
        coerce=int,
        choices=[(one, "1 minute" if one == 1 else f"{one} minutes") for one in MINUTES],
        help_text="With more time more hours are simulated, and plans are closer together. One of more than a minute runs at a time.",
    )
    change = forms.ChoiceField(label="Quota draft", required=False, help_text="An open change of the quota tree.")
    return_nodes = forms.BooleanField(label="Return nodes to service", required=False)

    from_hour = forms.IntegerField(
        label="From hour",
        required=False,
        min_value=0,
        max_value=MOST_TRACE_HOURS,
        help_text="Of the trace. Jobs that would still run then come first. Empty: from its beginning.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off", "size": 6}),
    )
    first_hours = forms.IntegerField(
        label="Hours",
        required=False,
        min_value=1,
        max_value=MOST_TRACE_HOURS,
        help_text="From there on. Empty: all, as far as time suffices.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off", "size": 6}),
    )
    queue = forms.ChoiceField(label="Quota node", required=False, help_text="For queues of the trace that have no quota node of their name.")

    def __init__(
        self,
        data: Any,
        *,
        settings: Settings,
        fleet: Sequence[NodesThere],
        changes: Iterable[QuotaChange],
        initial: Mapping[str, Any],
        trace: str = "",
        here: bool = False,
        paths: Iterable[str] = (),
    ) -> None:
        """`trace`: the id of the one that is replayed, with `here` on this fleet, in quota nodes of `paths`; empty: the last days."""
        super().__init__(data, initial={"days": USUAL_DAYS, **initial})
        self.fleet, self.trace, self.here = fleet, trace, here
        absent = {"days", *(() if here else ("queue", "change"))} if trace else {"from_hour", "first_hours", "queue"}
        base = "As in the trace" if trace and not here else "As today"
        self.fields["change"].choices = [("", base), *((one.public_id, f"{one.title} ({one.public_id})") for one in changes)]  # type: ignore[attr-defined]
        self.fields["queue"].choices = [("", "None"), *((path, path) for path in paths)]  # type: ignore[attr-defined]
        for name, rule in RULES.items():
            self.fields[name] = rule_field(name, rule, settings, base)
        for name in absent:
            del self.fields[name]
        self.away = sum(one.away for one in fleet)
        word = "node is" if self.away == 1 else "nodes are"
        self.fields["return_nodes"].help_text = f"{self.away:,} {word} draining, drained or down." if self.away else "All nodes serve."
        for one in fleet:
            field = forms.IntegerField(required=False, widget=forms.TextInput(attrs={"inputmode": "text", "autocomplete": "off", "size": 6}))
            field.widget.attrs["aria-label"] = f"More or fewer nodes with {one.kind.gpus} {one.kind.gpu_type} in {one.kind.cluster}"
            self.fields[f"{NODES}{one.kind}"] = field

    @property
    def policy_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in RULES if name not in self.later]

    @property
    def more_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.later]

    later = ("half_life_s", "min_runtime_s", "overrun", "max_wait_inference_s", "max_wait_interactive_s", "max_wait_batch_s")

    @property
    def shows_more(self) -> bool:
        return any(field.value() or field.errors for field in self.more_fields)

    @property
    def node_rows(self) -> list[tuple[NodesThere, forms.BoundField]]:
        return [(one, self[f"{NODES}{one.kind}"]) for one in self.fleet]

    @property
    def wanted(self) -> Wanted:
        data = self.cleaned_data
        policy = {name: SWITCH[value] if RULES[name].is_switch else value for name in RULES if (value := data.get(name)) not in (None, "")}
        hours = {"from_hour": data.get("from_hour") or 0, "first_hours": data.get("first_hours")}
        of_trace = {"trace": self.trace, "here": self.here, "queue": data.get("queue", ""), **hours}
        others = of_trace if self.trace else {}
        return Wanted(data.get("days", USUAL_DAYS), policy, self._nodes(), data["return_nodes"], minutes=data["minutes"] or MINUTES[0], **others)

    def _nodes(self) -> dict[NodeKind, int]:
        return {one.kind: count for one in self.fleet if (count := self.cleaned_data.get(f"{NODES}{one.kind}"))}

    def show(self, fault: ValidationError) -> None:
        """What a service refused, at its fields."""
        kinds = list(self._nodes())
        for path, texts in fault.message_dict.items():
            first, _, rest = path.partition(".")
            name: str | None = rest if first == "policy" else first
            if first == "nodes" and rest:
                name = f"{NODES}{kinds[int(rest.partition('.')[0])]}"
            for text in texts:
                self.add_error(name if name in self.fields else None, text)


class FilesInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class FilesField(forms.FileField):
    """One or more files."""

    widget = FilesInput

    def clean(self, data: Any, initial: Any = None) -> Any:
        several = data if isinstance(data, list | tuple) else [data]
        return [super(FilesField, self).clean(one, initial) for one in several or [None]]


class TraceForm(forms.Form):
    title = forms.CharField(
        max_length=80, help_text="Name in lists, such as Openb, first week.", widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    kind = forms.ChoiceField(label="Format", choices=list(KINDS.items()), help_text="A scenario is what gpufleet trace writes.")
    files = FilesField(  # type: ignore[assignment]  # of a form that is bound, `files` is what was sent
        help_text=f"UTF-8, up to {MOST_FILES} files and {MOST_BYTES >> 20} MiB in all. Gavel needs its throughputs, too."
    )
    nodes = forms.CharField(
        required=False,
        max_length=1000,
        help_text="Of traces without a list of nodes, such as 6x4:v100 2x8:h100: 6 nodes with 4 GPUs each.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    limit = forms.IntegerField(
        label="First jobs",
        required=False,
        min_value=1,
        max_value=MOST_JOBS,
        help_text=f"Empty: all, up to {MOST_JOBS:,}.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off", "size": 8}),
    )

    def clean_nodes(self) -> list[Shape]:
        try:
            return [shape_of(text) for text in self.cleaned_data["nodes"].replace(",", " ").split()]
        except ValueError as fault:
            raise ValidationError(f"{fault}.") from None


class OwnTraceForm(forms.Form):
    days = forms.IntegerField(
        min_value=1,
        max_value=MOST_OWN_DAYS,
        initial=USUAL_DAYS,
        help_text=f"The last 1 to {MOST_OWN_DAYS} days, with up to {MOST_JOBS:,} jobs.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off", "size": 8}),
    )
    title = forms.CharField(
        required=False,
        max_length=80,
        help_text="Name in lists. Empty: the days and today's date.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class SweepForm(forms.Form):
    trace = forms.ChoiceField(help_text="Its jobs come to its own fleet, again and again in the order that each seed draws.")
    axis = forms.ChoiceField(label="What is varied", choices=SweepAxis.choices, help_text="Of nodes the mix of GPU types stays that of the trace.")
    values = forms.CharField(
        max_length=200,
        help_text=f"2 to {MOST_VALUES}: arrival rates such as 0.6 0.8 1 1.2, 1 being that of the trace, or numbers of nodes such as 8 12 16.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    policies = forms.MultipleChoiceField(
        choices=[(name, f"{name}: {meaning}") for name, meaning in OFFERED.items()],
        widget=forms.CheckboxSelectMultiple,
        initial=list(USUAL_POLICIES),
        help_text=f"Up to {MOST_POLICIES}, each played at every value.",
    )
    seeds = forms.IntegerField(
        min_value=1,
        max_value=MOST_SEEDS,
        initial=USUAL_SEEDS,
        help_text="Draws of the order of jobs for each value. More seeds: a surer knee.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off", "size": 6}),
    )
    hours = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=MOST_HOURS,
        help_text="That are simulated, of which the first and the last quarter do not count. Empty: as long as jobs of the trace come.",
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off", "size": 6}),
    )
    minutes = forms.TypedChoiceField(
        label="Takes at most",
        coerce=int,
        choices=[(one, "1 minute" if one == 1 else f"{one} minutes") for one in SWEEP_MINUTES],
        initial=USUAL_MINUTES,
        help_text="If time runs out, what was simulated by then is shown.",
    )

    exact = forms.BooleanField(
        label="Exact",
        required=False,
        help_text="A plan whenever something happens. Else plans are a tenth of the mean run time apart, from 10 s to 5 minutes: much faster.",
    )

    def __init__(self, data: Any, *, traces: Iterable[tuple[str, str]], initial: Mapping[str, Any]) -> None:
        super().__init__(data, initial={**initial})
        self.fields["trace"].choices = list(traces)  # type: ignore[attr-defined]

    def clean_values(self) -> tuple[float, ...]:
        try:
            return values_of(self.cleaned_data["values"])
        except SweepError as fault:
            raise ValidationError(str(fault)) from None

    @property
    def asked(self) -> Asked:
        sent = self.cleaned_data
        return Asked(sent["axis"], sent["values"], tuple(sent["policies"]), sent["seeds"], sent["hours"], sent["minutes"], sent["exact"])


def initial_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A what-if that was asked for, as the form shows it."""
    found: dict[str, Any] = {"days": stored.get("days", USUAL_DAYS), "return_nodes": stored.get("return_nodes", False)}
    found["minutes"] = stored.get("minutes", MINUTES[0])
    found |= {name: stored[name] for name in ("from_hour", "first_hours", "queue") if stored.get(name)}
    for name, value in stored.get("policy", {}).items():
        found[name] = ("on" if value else "off") if RULES[name].is_switch else value
    for row in stored.get("nodes", ()):
        found[f"{NODES}{NodeKind(row['cluster'], row['gpu_type'], row['gpus'])}"] = f"{row['count']:+d}"
    return found
