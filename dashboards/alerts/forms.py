"""What the alert pages send. The services decide what is allowed; a form only reads."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from django import forms

from dashboards.alerts.figures import FIGURES
from dashboards.alerts.models import AlertRule, Severity
from dashboards.alerts.services import ROLES
from quotas.models import Role
from scheduler.models import Webhook

ROLE_CHOICES = [(role, Role(role).label) for role in ROLES]
FIGURE_CHOICES = [(key, f"{figure.label} ({figure.unit})" if figure.unit else figure.label) for key, figure in FIGURES.items()]


class HookChoices(forms.ModelMultipleChoiceField):
    def label_from_instance(self, obj: Webhook) -> str:
        return f"{obj.name} ({obj.node.path if obj.node else ''})"


class AlertRuleForm(forms.Form):
    name = forms.CharField(max_length=80)
    figure = forms.ChoiceField(choices=FIGURE_CHOICES)
    subject = forms.CharField(
        max_length=400,
        required=False,
        label="Of",
        help_text="A GPU type, class, team, pool, node or cluster; * is each of them; empty: the whole fleet.",
    )
    threshold = forms.FloatField(min_value=0, label="Limit")
    clear_at = forms.FloatField(min_value=0, label="Over at", help_text="It is over when the figure stays below this.")
    floor = forms.FloatField(
        min_value=0, required=False, label="Least amount", help_text="Of a rise of costs: a week that costs less does not count. Else 0."
    )
    for_minutes = forms.IntegerField(min_value=0, label="For, minutes", help_text="How long the figure must be beyond the limit, and back within it.")
    severity = forms.ChoiceField(choices=Severity.choices, initial=Severity.WARNING)
    told = forms.MultipleChoiceField(choices=ROLE_CHOICES, widget=forms.CheckboxSelectMultiple, required=False, label="Tell people with the role")
    hooks = HookChoices(
        Webhook.objects.none(),
        widget=forms.CheckboxSelectMultiple,
        required=False,
        to_field_name="public_id",
        label="Tell webhooks",
        help_text="Besides those of the top node that chose alerts.",
    )
    escalate_minutes = forms.IntegerField(min_value=1, required=False, label="Escalate after, minutes", help_text="Where nobody acknowledged it.")
    escalate_to = forms.MultipleChoiceField(choices=ROLE_CHOICES, widget=forms.CheckboxSelectMultiple, required=False, label="Escalate to")
    enabled = forms.BooleanField(required=False, initial=True)
    reason = forms.CharField(max_length=300, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(self, *arguments: Any, hooks: Any, figures: Collection[str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fields["figure"].choices = [(key, label) for key, label in FIGURE_CHOICES if key in figures]  # type: ignore[attr-defined]
        self.fields["hooks"].queryset = hooks  # type: ignore[attr-defined]

    def values(self) -> dict[str, Any]:
        given = {name: value for name, value in self.cleaned_data.items() if name not in ("reason", "revision", "hooks")}
        return given | {"floor": given["floor"] or 0}


class AcknowledgeForm(forms.Form):
    note = forms.CharField(max_length=300, required=False, help_text="What is done about it.")


class SilenceForm(forms.Form):
    rule = forms.ModelChoiceField(AlertRule.objects.none(), to_field_name="public_id", required=False, empty_label="All rules")
    subject = forms.CharField(max_length=400, required=False, label="Only of", help_text="Empty: of all.")
    until = forms.DateTimeField(label="Until (UTC)", widget=forms.DateTimeInput(attrs={"type": "datetime-local"}))
    reason = forms.CharField(max_length=300, required=False)

    def __init__(self, *arguments: Any, figures: Collection[str], is_for_all: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        rule: Any = self.fields["rule"]
        rule.queryset = AlertRule.objects.filter(removed_at__isnull=True, figure__in=figures)
        if not is_for_all:
            rule.required, rule.empty_label = True, None

    def clean_until(self) -> datetime:
        given: datetime = self.cleaned_data["until"]
        return given if given.tzinfo else given.replace(tzinfo=UTC)
