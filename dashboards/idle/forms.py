"""What the idle pages send. The services decide what is allowed; a form only reads."""

from datetime import UTC, datetime
from typing import Any

from django import forms

from dashboards.idle.policies import WEEKDAYS, Rules
from quotas.forms import NodeChoiceField, ZonePicker
from quotas.models import QuotaNode
from scheduler.models import JobClass

TIME_FORM = "%H:%M"


class NotifyForm(forms.Form):
    reason = forms.CharField(max_length=300, required=False, label="Message", help_text="Added to the notice. The owner reads it.")


class ReclaimForm(forms.Form):
    reason = forms.CharField(max_length=300, required=False, help_text="The owner reads it. It is kept in the audit log.")
    hold = forms.BooleanField(required=False, label="Hold the job afterwards", help_text="It then waits until someone releases it.")


class SnoozeForm(forms.Form):
    hours = forms.IntegerField(min_value=1, max_value=24, initial=4, label="Hours")
    reason = forms.CharField(max_length=300, required=False, help_text="Why the GPUs must stay. It is kept in the audit log.")


class ExemptionForm(forms.Form):
    node = NodeChoiceField(QuotaNode.objects.none(), label="Team or project", required=False, empty_label="–")
    job = forms.CharField(max_length=24, required=False, label="Or job", help_text="Public id, such as j-17.")
    until = forms.DateTimeField(label="Until (UTC)", widget=forms.DateTimeInput(attrs={"type": "datetime-local"}))
    reason = forms.CharField(max_length=300, required=False)

    def __init__(self, *arguments: Any, places: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fields["node"].queryset = places  # type: ignore[attr-defined]

    def clean_until(self) -> datetime:
        given: datetime = self.cleaned_data["until"]
        return given if given.tzinfo else given.replace(tzinfo=UTC)


class PolicyForm(forms.Form):
    enabled = forms.BooleanField(required=False, label="Watch allocations below this node")
    threshold_percent = forms.IntegerField(min_value=1, max_value=50, label="Idle below, % SM activity")
    window_minutes = forms.IntegerField(
        min_value=5, max_value=1440, label="Window, minutes", help_text="A GPU is idle when 90% of these minutes are."
    )
    classes = forms.MultipleChoiceField(choices=JobClass.choices, widget=forms.CheckboxSelectMultiple, label="Job classes")
    notify_minutes = forms.IntegerField(min_value=0, required=False, label="Notify after, minutes")
    warn_minutes = forms.IntegerField(min_value=0, required=False, label="Warn after, minutes")
    warn_again_minutes = forms.IntegerField(min_value=0, required=False, label="Warn again after, minutes")
    reclaim_minutes = forms.IntegerField(
        min_value=0, required=False, label="Reclaim after, minutes", help_text="Empty: never. The job saves its work first."
    )
    reclaim_share_percent = forms.IntegerField(
        min_value=1,
        max_value=100,
        label="Reclaim from idle share, %",
        help_text="A reclaim takes all GPUs of a job. With fewer idle it is warned only.",
    )
    hold_after = forms.BooleanField(required=False, label="Hold reclaimed jobs until someone releases them")
    weekdays = forms.MultipleChoiceField(
        choices=list(enumerate(WEEKDAYS)), widget=forms.CheckboxSelectMultiple, required=False, label="Act on", help_text="None: on all days."
    )
    hours_from = forms.TimeField(required=False, label="Working hours from", widget=forms.TimeInput(attrs={"type": "time"}, format=TIME_FORM))
    hours_until = forms.TimeField(required=False, label="Working hours until", widget=forms.TimeInput(attrs={"type": "time"}, format=TIME_FORM))
    zone = forms.CharField(max_length=60, label="Time zone", help_text="Such as Europe/Berlin or UTC.", widget=ZonePicker)
    reason = forms.CharField(max_length=300, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    @classmethod
    def initial_of(cls, rules: Rules, revision: int) -> dict[str, Any]:
        values = {name: getattr(rules, name) for name in cls.base_fields if hasattr(rules, name)}
        times = {name: _clock(getattr(rules, name)) for name in ("hours_from", "hours_until")}
        return values | times | {"weekdays": [str(day) for day in rules.weekdays], "classes": list(rules.classes), "revision": revision}

    def values(self) -> dict[str, Any]:
        """As the service takes them."""
        data = {name: value for name, value in self.cleaned_data.items() if name not in ("reason", "revision")}
        data["weekdays"] = tuple(int(day) for day in data["weekdays"])
        for name in ("hours_from", "hours_until"):
            data[name] = None if data[name] is None else 60 * data[name].hour + data[name].minute
        return data


def _clock(minutes: int | None) -> str | None:
    return None if minutes is None else f"{minutes // 60:02}:{minutes % 60:02}"
