"""Forms of the tree, of people and of tokens. Rules live in the services; forms read what was typed and show faults at their field."""

from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, cast

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from gpufleet.core.amounts import ungrouped
from gpufleet.core.lengths import length_written, seconds_read
from quotas.models import NodeKind, QuotaNode
from quotas.permissions import Scope
from quotas.rules import CLASSES, NODE_FIELDS, POLICY, SUBMISSION_LIMITS, NodeValues, Rule, Share, said

UNLIMITED = ("unlimited", "none", "∞")
SCOPE_LABELS = {
    Scope.READ: "Read: see the fleet, jobs, costs and the audit as far as you may",
    Scope.SUBMIT: "Submit: send in jobs and manage them",
    Scope.OPERATE: "Operate: change nodes, drain, import",
    Scope.ADMIN: "Administer: edit the quota tree and people",
}
FORM_FIELDS = tuple(name for name in NODE_FIELDS if name not in ("shares", "policy"))
LIFETIMES = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year"))


class GpusField(forms.CharField):
    """An amount of GPUs as people write it (`8`, `0.5`, `1,024`), kept as milli-GPU. None stands for unlimited."""

    def __init__(self, *, empty: int | None, **options: Any) -> None:
        self.empty = empty
        super().__init__(required=False, max_length=20, **options)
        self.widget.attrs |= {"inputmode": "decimal", "size": 9, "autocomplete": "off"}

    def clean(self, value: Any) -> Any:
        text = ungrouped(super().clean(value).replace("\N{NO-BREAK SPACE}", "").lower())
        if not text:
            return self.empty
        if text in UNLIMITED:
            return None
        try:
            milli = Decimal(text) * 1000
        except InvalidOperation:
            raise ValidationError("Write a number such as 8 or 0.5, or “unlimited”.") from None
        if not milli.is_finite() or milli != milli.to_integral_value():
            raise ValidationError("A GPU is divided into thousandths at most: write three decimals or fewer.")
        if milli < 0:
            raise ValidationError("Enter 0 or more.")
        return int(milli)

    def prepare_value(self, value: Any) -> Any:
        if value is None:
            return "" if self.empty is None else "unlimited"
        return said(value) if isinstance(value, int) else value


class LengthField(forms.CharField):
    """A length of time as people write it (`90m`, `7d`), kept in seconds."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, max_length=20, **options)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        seconds = seconds_read(text) if text else None
        if text and (seconds is None or not seconds.is_integer()):
            raise ValidationError("Write a length such as 90m, 12h or 7d.")
        return None if seconds is None else int(seconds)

    def prepare_value(self, value: Any) -> Any:
        return length_written(value) if isinstance(value, int) else value


class PartsField(forms.DecimalField):
    """A number that is kept as so many whole parts of one."""

    def __init__(self, *, parts: int, **options: Any) -> None:
        self.parts = parts
        widget = forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"})
        super().__init__(required=False, max_digits=18, decimal_places=6, widget=widget, **options)

    def clean(self, value: Any) -> Any:
        number = super().clean(value)
        return None if number is None else round(number * self.parts)

    def prepare_value(self, value: Any) -> Any:
        return f"{Decimal(value) / self.parts:.6f}".rstrip("0").rstrip(".") if isinstance(value, int) else value


def policy_field(rule: Rule) -> forms.Field:
    """The field of a fleet-wide rule. Empty: as the operator configured it."""
    named: dict[str, Any] = {"label": rule.title, "help_text": rule.help}
    if rule.choices:
        return forms.ChoiceField(required=False, choices=[("", "As in the settings"), *rule.choices.items()], **named)
    if rule.unit == "s":
        return LengthField(**named)
    if rule.unit == "millionths":
        return PartsField(parts=1_000_000, **named)
    return PartsField(parts=3600, **named | {"label": f"{rule.title} (GPU-hours)"})


POLICY_FIELDS = {f"policy_{name}": name for name in POLICY}


class ShareForm(forms.Form):
    """One row of the shares table: what the node is promised of one GPU type."""

    guaranteed = GpusField(empty=0, label="Guaranteed")
    limit = GpusField(empty=None, label="Limit")
    weight = forms.IntegerField(required=False, label="Weight", widget=forms.TextInput(attrs={"inputmode": "numeric", "size": 5}))
    priority = forms.IntegerField(required=False, label="Priority", widget=forms.TextInput(attrs={"inputmode": "numeric", "size": 5}))

    def __init__(self, gpu_type: str, data: Any, initial: dict[str, Any]) -> None:
        self.gpu_type = gpu_type
        super().__init__(data, initial=initial, prefix=f"share-{gpu_type}")
        for field in self.fields.values():
            field.widget.attrs["aria-label"] = f"{field.label}, {gpu_type}"

    def share(self) -> Share:
        data = self.cleaned_data
        return Share(data["guaranteed"], data["limit"], data["weight"], data["priority"])


class NodeForm(forms.Form):
    """A node with its shares. `decides` is False for those who may describe the node, but not say what it is promised."""

    name = forms.CharField(max_length=60, help_text="Small letters, digits, - and _. It becomes part of the path.")
    kind = forms.ChoiceField(choices=NodeKind.choices)
    title = forms.CharField(max_length=120, required=False, help_text="How pages call it; empty: its name.")
    cost_centre = forms.CharField(max_length=40, required=False, help_text="Cost centre that pays. Empty: as the parent.")
    weight = forms.IntegerField(initial=1, min_value=0, help_text="Share of idle GPUs relative to its siblings. 0: none.")
    priority = forms.IntegerField(initial=100, min_value=0, help_text="Higher classes share the surplus first.")
    overcommit = forms.BooleanField(
        required=False, label="Allow overcommit", help_text="The nodes below may be promised more together than this node has."
    )
    preempt_min_runtime_s = forms.IntegerField(
        required=False, min_value=0, label="Minimum run time, preemption", help_text="Seconds; empty: the nearest value above."
    )
    reclaim_min_runtime_s = forms.IntegerField(
        required=False, min_value=0, label="Minimum run time, reclaim", help_text="Seconds; empty: the nearest value above."
    )
    submits_per_minute = forms.IntegerField(
        required=False,
        min_value=0,
        label="Submissions a minute",
        help_text="Jobs, with all nodes below. 0: no limit; empty: the nearest value above.",
    )
    waiting_limit = forms.IntegerField(
        required=False, min_value=0, label="Waiting limit", help_text="Waiting jobs at once. 0: no limit; empty: the nearest value above."
    )
    default_class = forms.ChoiceField(
        required=False,
        choices=[("", "As the node above"), *((name, name.capitalize()) for name in CLASSES)],
        help_text="Class of jobs that state none.",
    )
    needs_approval = forms.BooleanField(required=False, label="Require approval", help_text="A second person approves changes here and below.")
    reason = forms.CharField(max_length=500, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(
        self,
        data: Any = None,
        *,
        gpu_types: Iterable[str],
        values: NodeValues,
        fixed_name: str = "",
        decides: bool = True,
        is_top: bool = False,
        **options: Any,
    ):
        self.values, self.decides = values, decides
        self.ruled = POLICY_FIELDS if is_top and decides else {}
        initial = {name: getattr(values, name) for name in FORM_FIELDS} | {field: values.policy.get(name) for field, name in self.ruled.items()}
        super().__init__(data, initial=initial | options.pop("initial", {}), **options)
        self.fields |= {field: policy_field(POLICY[name]) for field, name in self.ruled.items()}
        if fixed_name:
            del self.fields["name"]
        if not decides:
            for name in ("kind", "weight", "priority", "preempt_min_runtime_s", "reclaim_min_runtime_s", *SUBMISSION_LIMITS):
                del self.fields[name]
        self.shares = [ShareForm(gpu_type, data, _share_initial(values.shares.get(gpu_type))) for gpu_type in gpu_types] if decides else []

    @property
    def policy_rows(self) -> list[forms.BoundField]:
        return [self[name] for name in self.ruled]

    def is_valid(self) -> bool:
        # All rows are looked at, so that every fault shows at once.
        return all([super().is_valid(), *(row.is_valid() for row in self.shares)])

    def node_values(self) -> NodeValues:
        data = self.cleaned_data
        held = {name: data.get(name, getattr(self.values, name)) for name in FORM_FIELDS}
        ruled = {name: data[field] for field, name in self.ruled.items() if data[field] not in (None, "")}
        held |= {"policy": ruled if self.ruled else self.values.policy}
        if not self.decides:
            return NodeValues(**held, shares=self.values.shares)
        stated = {row.gpu_type: row.share() for row in self.shares}
        return NodeValues(
            **held, shares={gpu_type: share for gpu_type, share in stated.items() if share != Share() or gpu_type in self.values.shares}
        )

    def show_faults(self, fault: ValidationError) -> None:
        """Put each message of a service at its field, in the shares table too."""
        rows = {row.gpu_type: row for row in self.shares}
        for field, messages in faults_of(fault):
            gpu_type, _, column = field.removeprefix("shares.").rpartition(".")
            column = column.removesuffix("_milli")
            if field.startswith("shares.") and gpu_type in rows and column in rows[gpu_type].fields:
                rows[gpu_type].add_error(column, messages)
            else:
                at = field.replace("policy.", "policy_", 1)
                self.add_error(at if at in self.fields else None, messages)


def _share_initial(share: Share | None) -> dict[str, Any]:
    share = share or Share()
    return {"guaranteed": share.guaranteed_milli, "limit": share.limit_milli, "weight": share.weight, "priority": share.priority}


def faults_of(fault: ValidationError) -> list[tuple[str, list[str]]]:
    """A service's faults by field; those that belong to none have the empty field."""
    if not hasattr(fault, "error_dict"):
        return [("", fault.messages)]
    return [("" if field == NON_FIELD_ERRORS else field, messages) for field, messages in fault.message_dict.items()]


def show_faults(form: forms.Form, fault: ValidationError) -> None:
    for field, messages in faults_of(fault):
        form.add_error(field if field in form.fields else None, messages)


class NodeChoiceField(forms.ModelChoiceField):
    """Nodes by their path; the form holds public ids."""

    def __init__(self, queryset: Any, **options: Any) -> None:
        super().__init__(queryset, to_field_name="public_id", **options)

    def label_from_instance(self, obj: QuotaNode) -> str:
        return obj.path


class MoveForm(forms.Form):
    name = forms.CharField(max_length=60)
    parent = NodeChoiceField(QuotaNode.objects.none(), label="Below", required=False, empty_label="Top level")
    reason = forms.CharField(max_length=500, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *arguments: Any, parents: Any, top: bool, **options: Any) -> None:
        """`top`: whether the reader may move it to the top level."""
        super().__init__(*arguments, **options)
        parent = cast(NodeChoiceField, self.fields["parent"])
        parent.queryset = parents
        if not top:
            parent.required, parent.empty_label = True, None


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=500, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)


CLOCK = "%Y-%m-%dT%H:%M"
CLOCKS = [CLOCK, "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"]


class ZonePicker(forms.TextInput):
    """A time zone, chosen from a list while one types; `quotas/_field.html` gives the list."""

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        super().__init__({"list": "zones", "autocomplete": "off", **(attrs or {})})


class ApplyAtForm(forms.Form):
    apply_at = forms.DateTimeField(
        label="Apply at (UTC)", input_formats=CLOCKS, widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=CLOCK)
    )


class PastForm(forms.Form):
    at = forms.DateTimeField(label="As of (UTC)", input_formats=CLOCKS, widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=CLOCK))


class ImportForm(forms.Form):
    file = forms.FileField(required=False, help_text="As Export writes it.", widget=forms.ClearableFileInput(attrs={"accept": ".yaml,.yml,.csv"}))
    text = forms.CharField(required=False, label="Or text", max_length=8_000_000, strip=False, widget=forms.Textarea(attrs={"rows": 12}))
    format = forms.ChoiceField(choices=(("yaml", "YAML"), ("csv", "CSV")))
    archive_missing = forms.BooleanField(required=False, label="Archive nodes that the file does not name")
    reason = forms.CharField(max_length=500, required=False, help_text="Kept in the audit log with your name.")

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if (file := data.get("file")) is not None:
            try:
                data["text"] = file.read(16_000_000).decode()
            except UnicodeDecodeError:
                self.add_error("file", "This is not a text file in UTF-8.")
        if not data.get("text"):
            self.add_error("file", "Choose a file, or paste its text.")
        return data


class GrantForm(forms.Form):
    """A role for a person, or for a group of the sign-on provider."""

    holder = forms.CharField(max_length=200, label="Person or group", help_text="A user name; or group: and the name of a sign-on group.")
    role = forms.ChoiceField()

    def __init__(self, *arguments: Any, roles: Iterable[tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fields["role"].choices = list(roles)  # type: ignore[attr-defined]


class PersonForm(forms.Form):
    username = forms.CharField(max_length=150, help_text="What they type to sign in. It can't be changed later.")
    display_name = forms.CharField(max_length=120, label="Name")
    email = forms.CharField(max_length=254, required=False, label="E-mail", help_text="Single sign-on finds a prepared account by it.")

    def __init__(self, *arguments: Any, new: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not new:
            del self.fields["username"]


class TokenForm(forms.Form):
    name = forms.CharField(max_length=80, help_text="What will use it, so that people know what breaks when it is revoked.")
    scopes = forms.MultipleChoiceField(choices=[(scope.value, SCOPE_LABELS[scope]) for scope in Scope], widget=forms.CheckboxSelectMultiple)
    node = NodeChoiceField(
        QuotaNode.objects.none(),
        required=False,
        label="Subtree",
        empty_label="All that I may see",
        help_text="The token is worth nothing outside it.",
    )
    lifetime = forms.ChoiceField(choices=LIFETIMES, initial="90", label="Valid for")

    def __init__(self, *arguments: Any, nodes: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fields["node"].queryset = nodes  # type: ignore[attr-defined]

    @property
    def valid_for(self) -> timedelta:
        return timedelta(days=int(self.cleaned_data["lifetime"]))
