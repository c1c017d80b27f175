"""What forms send. The services decide what is allowed; a form only reads."""

from typing import Any

from django import forms
from django.core.validators import validate_slug

from quotas.forms import NodeChoiceField
from quotas.models import QuotaNode
from scheduler.engine.mig import Instance
from scheduler.happenings import LABELS, Happened
from scheduler.imports.documents import FORMATS
from scheduler.services.hardware import REASON_LENGTH


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=REASON_LENGTH, required=False, strip=True)


class HealthForm(ReasonForm):
    """`seen` is the health that the page showed, so that a newer one is not overwritten."""

    to = forms.CharField(max_length=20)
    seen = forms.CharField(max_length=20, required=False)


class SpareForm(ReasonForm):
    spare = forms.TypedChoiceField(choices=[("yes", "Yes"), ("no", "No")], coerce=lambda value: value == "yes")


class LayoutField(forms.CharField):
    """`4g.40gb@0 3g.40gb@4`; empty: split into nothing."""

    def to_python(self, value: object) -> list[Instance]:  # type: ignore[override]
        layout = []
        for word in str(super().to_python(value) or "").split():
            profile, at, start = word.rpartition("@")
            if not at or not start.isascii() or not start.isdigit() or len(start) > 2:
                raise forms.ValidationError(f"“{word[:40]}” is no instance; write it as 3g.40gb@4: a profile and the slice that it starts at.")
            layout.append(Instance(int(start), profile))
        return sorted(layout)


class GeometryForm(ReasonForm):
    """A whole new layout. `mode` whole makes the GPU one again."""

    mode = forms.ChoiceField(choices=[("mig", "Split"), ("whole", "Whole")])
    layout = LayoutField(required=False, max_length=400)
    seen = LayoutField(required=False, max_length=400)


class ImportForm(forms.Form):
    """A file, or its text."""

    file = forms.FileField(required=False)
    text = forms.CharField(required=False, strip=False, widget=forms.Textarea)
    form = forms.ChoiceField(required=False, choices=[("", "Automatic: by the name of the file"), *((name, name.upper()) for name in FORMATS)])
    remove_missing = forms.BooleanField(required=False)

    def clean(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        if bool(cleaned.get("file")) == bool(cleaned.get("text", "").strip()) and not self.errors:
            self.add_error("file", "Choose a file, or paste its text." if not cleaned.get("file") else "Choose a file or paste a text, not both.")
        return cleaned


class DiscoverForm(forms.Form):
    cluster = forms.CharField(required=False, max_length=60, validators=[validate_slug])


class WebhookForm(forms.Form):
    """`places` are the nodes that a new webhook may be for; one that is changed stays where it is."""

    node = NodeChoiceField(QuotaNode.objects.none(), label="Jobs of", empty_label=None, help_text="It is told of all jobs of this node and below it.")
    name = forms.CharField(max_length=80, help_text="What it tells, so that people know what stops when it is removed.")
    url = forms.CharField(
        max_length=500,
        label="Address",
        help_text="Where messages are sent, such as https://hooks.example.org/gpufleet.",
        widget=forms.URLInput(attrs={"autocomplete": "off"}),
    )
    kinds = forms.MultipleChoiceField(
        choices=[(kind.value, f"{LABELS[kind]} ({kind.value})") for kind in Happened],
        label="Tell it when",
        widget=forms.CheckboxSelectMultiple,
        initial=[Happened.FAILED.value, Happened.PREEMPTED.value],
    )
    reason = forms.CharField(max_length=500, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(self, *arguments: Any, places: Any = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if places is None:
            del self.fields["node"]
        else:
            self.fields["node"].queryset = places  # type: ignore[attr-defined]
