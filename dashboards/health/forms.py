"""What the health pages send. The services decide what is allowed; a form only reads."""

import shlex
from typing import Any

from django import forms

from dashboards.health.models import Action, HealthSettings
from dashboards.health.selectors import signal_choices
from dashboards.health.xids import GROUPS


class RuleForm(forms.Form):
    name = forms.CharField(max_length=80)
    signal = forms.ChoiceField(choices=signal_choices)
    group = forms.ChoiceField(choices=[("", "All"), *GROUPS.items()], required=False, label="Kind of XID", help_text="For rules on XIDs only.")
    threshold = forms.IntegerField(min_value=1, help_text="Holds at this figure or above.")
    window_minutes = forms.IntegerField(min_value=1, label="Window, minutes", help_text="Seconds and counts add up over it.")
    clear_below = forms.IntegerField(min_value=1, label="Over below", help_text="It is over when the figure stays below this.")
    clear_minutes = forms.IntegerField(min_value=1, label="For, minutes")
    action = forms.ChoiceField(choices=Action.choices, help_text="Jobs of a drained node move to a free spare, if one fits.")
    enabled = forms.BooleanField(required=False, initial=True)
    reason = forms.CharField(max_length=300, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def values(self) -> dict[str, Any]:
        return {name: value for name, value in self.cleaned_data.items() if name not in ("reason", "revision")}


class LimitsForm(forms.Form):
    acts = forms.BooleanField(required=False, label="Rules act by themselves", help_text="Off: they note what they find.")
    most_percent = forms.IntegerField(min_value=1, max_value=50, label="At most this % of a pool out of service by rule")
    patience_minutes = forms.IntegerField(min_value=0, label="Let work end for, minutes", help_text="Then it saves and moves.")
    repair_minutes = forms.IntegerField(
        min_value=0, required=False, label="Burn-in after, minutes in repair", help_text="Empty: when someone says so."
    )
    burn_in_minutes = forms.IntegerField(min_value=0, label="Test job runs for, minutes", help_text="0: no test job.")
    burn_in_command = forms.CharField(max_length=2000, required=False, label="Test command", help_text="Runs on all GPUs. Empty: a person decides.")
    reason = forms.CharField(max_length=300, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    @classmethod
    def initial_of(cls, row: HealthSettings) -> dict[str, Any]:
        plain = ("acts", "most_percent", "patience_minutes", "repair_minutes", "burn_in_minutes", "revision")
        return {name: getattr(row, name) for name in plain} | {"burn_in_command": shlex.join(row.burn_in_command)}

    def clean_burn_in_command(self) -> list[str]:
        try:
            return shlex.split(self.cleaned_data["burn_in_command"])
        except ValueError as fault:
            raise forms.ValidationError(f"The command can't be read: {fault}.") from None

    def values(self) -> dict[str, Any]:
        return {name: value for name, value in self.cleaned_data.items() if name not in ("reason", "revision")}
