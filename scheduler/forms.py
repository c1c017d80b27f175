"""What forms send. The services decide what is allowed; a form only reads."""

from collections.abc import Collection, Iterable
from typing import Any

from django import forms
from django.core.validators import validate_slug
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from quotas.forms import NodeChoiceField, ZonePicker
from quotas.forms import ReasonForm as ConfirmForm
from quotas.models import QuotaNode
from scheduler.engine.model.mig import Instance
from scheduler.hardware.boundaries import BOUNDARIES
from scheduler.imports.documents import FORMATS, KUBERNETES
from scheduler.jobs.fields import PLAIN
from scheduler.jobs.yaml_text import read_yaml
from scheduler.models import CatchUp, DrainWay, HookForm, Overlap
from scheduler.notify.happenings import HOOK_KINDS, LABELS, Happened
from scheduler.schedules.pattern import pattern_of, pattern_sent
from scheduler.services.hardware.hardware import REASON_LENGTH, Undone
from scheduler.services.jobs.steering import REASON_LENGTH as STEERING_LENGTH


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=REASON_LENGTH, required=False, strip=True)


class SteeringForm(ConfirmForm):
    """Why something is cancelled or removed: as long as the service takes it."""

    reason = forms.CharField(max_length=STEERING_LENGTH, required=False, strip=True)


class UndoableForm(ReasonForm):
    """`undone` is there where it takes a step of health back: by its `mark`, and with the reason that stood before."""

    mark = forms.CharField(max_length=200, required=False)
    stands = forms.CharField(max_length=REASON_LENGTH, required=False)

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        return found | {"undone": Undone(found["mark"], found.get("stands", "")) if found.get("mark") else None}


class HealthForm(UndoableForm):
    """`seen` is the health that the page showed, so that a newer one is not overwritten."""

    to = forms.CharField(max_length=20)
    seen = forms.CharField(max_length=20, required=False)


class BeginsForm(forms.Form):
    """`begins`: empty means at once."""

    begins = forms.DateTimeField(required=False, error_messages={"invalid": "Enter a date and a time, or leave it empty to begin now."})


class NodeHealthForm(HealthForm, BeginsForm):
    """Of a node, which may take it later."""


class DrainForm(UndoableForm, BeginsForm):
    """`begins`: empty means at once. `jobs` is what becomes of running jobs, `at` when; where they finish it says nothing."""

    jobs = forms.ChoiceField(choices=DrainWay.choices, initial=DrainWay.FINISH, required=False)
    at = forms.DateTimeField(required=False, error_messages={"invalid": "Enter a date and a time, or leave it empty for now."})

    def clean_jobs(self) -> str:
        return self.cleaned_data["jobs"] or DrainWay.FINISH.value

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        if found.get("jobs") == DrainWay.FINISH:
            found["at"] = None
            self.errors.pop("at", None)
        return found


AFTER_CHOICES = [("requeue", "Queue those again that fit elsewhere"), ("fail", "All fail")]


class GiveUpForm(ReasonForm):
    """`confirm` is the name of the cluster, as it was typed."""

    jobs = forms.ChoiceField(choices=AFTER_CHOICES, initial="requeue", required=False)
    confirm = forms.CharField(max_length=60, required=False)

    def clean_jobs(self) -> str:
        return self.cleaned_data["jobs"] or "requeue"


class RemovalForm(ReasonForm):
    """`confirm` is the name of the cluster, as it was typed."""

    confirm = forms.CharField(max_length=60, required=False)


class SpareForm(ReasonForm):
    """`mark` is there where it takes a step back: the id of that step."""

    mark = forms.CharField(max_length=20, required=False)
    spare = forms.TypedChoiceField(choices=[("yes", "Yes"), ("no", "No")], coerce=lambda value: value == "yes")


class BoundariesForm(ReasonForm):
    """`mark` as above. A boundary that is not ticked is not stated."""

    mark = forms.CharField(max_length=20, required=False)
    cores = forms.BooleanField(required=False)
    mig = forms.BooleanField(required=False)

    @property
    def boundaries(self) -> list[str]:
        return [name for name in BOUNDARIES if self.cleaned_data[name]]


class LayoutField(forms.CharField):
    """`4g.40gb@0 3g.40gb@4`; empty: split into nothing."""

    def to_python(self, value: object) -> list[Instance]:  # type: ignore[override]
        layout = []
        for word in str(super().to_python(value) or "").split():
            profile, at, start = word.rpartition("@")
            if not at or not start.isascii() or not start.isdigit() or len(start) > 2:
                raise forms.ValidationError(f"“{word[:40]}” is not an instance; write it as 3g.40gb@4: a profile and the slice that it starts at.")
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
    form = forms.ChoiceField(
        required=False,
        choices=[("", "Automatic: by the name of the file"), *((name, name.upper()) for name in FORMATS), (KUBERNETES, "kubectl get nodes -o json")],
    )
    cluster = forms.CharField(required=False, max_length=60, validators=[validate_slug])
    remove_missing = forms.BooleanField(required=False)

    def clean(self) -> dict[str, Any]:
        cleaned = self.cleaned_data
        if bool(cleaned.get("file")) == bool(cleaned.get("text", "").strip()) and not self.errors:
            self.add_error("file", "Choose a file, or paste its text." if not cleaned.get("file") else "Choose a file or paste a text, not both.")
        return cleaned


class DiscoverForm(forms.Form):
    cluster = forms.CharField(required=False, max_length=60, validators=[validate_slug])


class LocalClusterForm(forms.Form):
    cluster = forms.CharField(
        max_length=60,
        validators=[validate_slug],
        label="Name",
        initial="local",
        help_text="Name of the cluster here. A new cluster is created.",
        widget=forms.TextInput({"autocomplete": "off"}),
    )


class SlurmForm(forms.Form):
    """How a Slurm cluster is reached. slurm.conf is the machine's own: a file chosen here could name plug-ins that the console would load."""

    cluster = forms.CharField(
        max_length=60,
        validators=[validate_slug],
        label="Name",
        help_text="Name of the cluster here, such as hpc. A new cluster is created.",
        widget=forms.TextInput({"autocomplete": "off"}),
    )
    user = forms.ChoiceField(help_text="User that jobs run as in Slurm.")
    folder = forms.CharField(
        max_length=300, label="Shared folder", help_text="For logs and checkpoints, at the same path on the console and on every node."
    )
    partition = forms.CharField(required=False, max_length=60, help_text="Empty: the default partition.")
    account = forms.CharField(required=False, max_length=60, help_text="Account that jobs are charged to in Slurm. Empty: the default of the user.")
    rest_url = forms.ChoiceField(
        required=False,
        label="Read with",
        help_text="slurmrestd is sent a token that the console makes for itself and that expires after 10 minutes. No token is stored.",
    )
    node_logs = forms.CharField(required=False, max_length=300, label="Log folder of the nodes", help_text="Empty: logs lie in the shared folder.")

    def __init__(self, *args: Any, users: Collection[str], rest_urls: Collection[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["user"].choices = [(name, name or "the user of the console") for name in users]  # type: ignore[attr-defined]
        self.fields["user"].required = "" not in users
        self.may_run = bool(users)
        self.fields["rest_url"].choices = [("", "Slurm's commands"), *((url, f"slurmrestd at {url}") for url in rest_urls)]  # type: ignore[attr-defined]
        if not rest_urls:
            del self.fields["rest_url"]


class KubernetesForm(forms.Form):
    """How a Kubernetes cluster is reached. The contexts are those that the console's machine offers: no address and no credentials are entered."""

    cluster = forms.CharField(
        max_length=60,
        validators=[validate_slug],
        label="Name",
        help_text="Name of the cluster here, such as k8s. A new cluster is created.",
        widget=forms.TextInput({"autocomplete": "off"}),
    )
    context = forms.ChoiceField(help_text="Of the kubeconfig on the console's machine.")
    namespace = forms.CharField(required=False, max_length=63, help_text="Where pods are created. Empty: that of the context.")
    image = forms.CharField(required=False, max_length=500, label="Default image", help_text="Of jobs that name none.")
    tolerates = forms.CharField(
        required=False, max_length=300, label="Taints", help_text="Keys that pods tolerate, beside nvidia.com/gpu, with commas between them."
    )
    levels = forms.CharField(
        required=False,
        max_length=1000,
        label="Topology levels",
        help_text="<code>label=level</code> per line, wide to narrow. Empty: region and zone. <code>none</code>: no levels.",
        widget=forms.Textarea({"rows": 3, "class": "code", "spellcheck": "false", "placeholder": "topology.kubernetes.io/zone=zone"}),
    )
    runtime_class = forms.CharField(required=False, max_length=253, help_text="Such as nvidia. Empty: the default one.")
    priority_class = forms.CharField(required=False, max_length=253, help_text="Empty: the default one.")
    service_account = forms.CharField(required=False, max_length=253, help_text="Of the pods. Empty: that of the namespace.")
    pull_secret = forms.CharField(required=False, max_length=253, help_text="Name of a Secret with which images are pulled.")
    uid = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, label="User id", help_text="Of the pods. Empty: what their image says."
    )
    claim = forms.CharField(required=False, max_length=253, label="Volume claim", help_text="For checkpoints. Empty: none.")
    mount = forms.CharField(required=False, max_length=300, label="Path in pods", help_text="Where pods see the volume, such as /checkpoints.")
    folder = forms.CharField(
        required=False, max_length=300, label="Path on the console", help_text="Where the console sees the same volume. Empty: it does not."
    )

    def __init__(self, *args: Any, contexts: Collection[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["context"].choices = [(name, name) for name in contexts]  # type: ignore[attr-defined]
        self.initial["levels"] = str(self.initial.get("levels", "")).replace(", ", "\n")
        self.may_run = bool(contexts)


class SlurmTypesForm(forms.Form):
    """The type of the inventory for each type of GRES of a Slurm cluster; memory is required for a type that the inventory lacks."""

    def __init__(self, *args: Any, gres: Iterable[str], known: Iterable[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.gres, self.known = tuple(gres), frozenset(known)
        for name in self.gres:
            attrs = {"list": "known-types", "autocomplete": "off"}
            self.fields[f"name-{name}"] = forms.CharField(label=f"Type of “{name}”", max_length=60, widget=forms.TextInput(attrs))
            self.fields[f"memory-{name}"] = forms.IntegerField(label=f"Memory of “{name}”, MiB", required=False, min_value=1, max_value=10_000_000)
            self.fields[f"memory-{name}"].help_text = "Only for a type that is not in the inventory."

    def clean(self) -> dict[str, Any]:
        found = super().clean() or {}
        for name in self.gres:
            chosen = found.get(f"name-{name}")
            if chosen and chosen not in self.known and not found.get(f"memory-{name}") and f"memory-{name}" not in self.errors:
                self.add_error(f"memory-{name}", f"{chosen} is not in the inventory: its memory is required.")
        return found


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
        choices=[(kind.value, f"{LABELS[kind]} ({kind.value})") for kind in HOOK_KINDS],
        label="Tell it when",
        widget=forms.CheckboxSelectMultiple,
        initial=[Happened.FAILED.value, Happened.PREEMPTED.value],
    )
    form = forms.ChoiceField(
        choices=HookForm.choices,
        initial=HookForm.JSON,
        required=False,
        label="Format",
        help_text="Slack-compatible messages suit Slack, Mattermost and others that take {“text”: …}.",
    )
    reason = forms.CharField(max_length=500, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def clean_form(self) -> str:
        return self.cleaned_data["form"] or str(self.initial.get("form", HookForm.JSON))

    def __init__(self, *arguments: Any, places: Any = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if places is None:
            del self.fields["node"]
        else:
            self.fields["node"].queryset = places  # type: ignore[attr-defined]


class RestartForm(SteeringForm):
    """`key` is drawn for each page, so that a second click submits no second job; `revision` is the job's as the page showed it."""

    key = forms.CharField(widget=forms.HiddenInput, required=False, max_length=100)

    def __init__(self, *arguments: Any, anew: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if anew:
            del self.fields["reason"]


class JobField(forms.CharField):
    """A job as YAML; what it means is for the schema to say."""

    widget = forms.Textarea(attrs={"class": "code", "rows": 14, "spellcheck": "false"})

    def to_python(self, value: object) -> Any:
        document = read_yaml(str(super().to_python(value) or "").replace("\r\n", "\n"))
        if document.faults:
            raise forms.ValidationError([f"{path}: {text}" if path != "yaml" else text for path, told in document.faults.items() for text in told])
        return document.value

    def run_validators(self, value: Any) -> None:
        """Those of a text are nothing for what it says."""


class WhenWidget(forms.Widget):
    """Days and a time; what the service gets is the cron expression that says so."""

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:
        given = attrs or {}
        context = {"name": name, "id": given.get("id", f"id_{name}"), "when": pattern_of(value or ""), "described_by": given.get("aria-describedby")}
        return render_to_string("scheduler/_when.html", context | {"invalid": "aria-invalid" in given})

    def value_from_datadict(self, data: Any, files: Any, name: str) -> str:
        return pattern_sent(name, data.get, data.getlist).cron


class WhenField(forms.CharField):
    widget = WhenWidget

    def validate(self, value: str) -> None:
        super().validate(value)
        if fault := pattern_of(value).fault:
            raise forms.ValidationError(fault)


class MomentUTC(forms.DateTimeField):
    """A moment by the browser's picker, which knows no zones: in UTC. One that states its zone is taken as well."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "any"}, format="%Y-%m-%dT%H:%M:%S")

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, **options)


class ScheduleForm(forms.Form):
    """When a job is due. The job itself is changed by its owner alone."""

    name = forms.CharField(max_length=120)
    cron = WhenField(max_length=100, label="When")
    zone = forms.CharField(max_length=60, label="Time zone", initial="UTC", help_text=PLAIN["repeat.zone"].hint, widget=ZonePicker)
    overlap = forms.ChoiceField(choices=Overlap.choices, initial=Overlap.SKIP, label=PLAIN["repeat.overlap"].label)
    catch_up = forms.ChoiceField(choices=CatchUp.choices, initial=CatchUp.LAST, label=PLAIN["repeat.catch_up"].label)
    start_within_s = forms.IntegerField(
        required=False,
        min_value=1,
        label=PLAIN["repeat.start_within_s"].label,
        help_text="In seconds. Empty: as late as it comes; five minutes where missed runs are skipped.",
    )
    starts_at = MomentUTC(label="From (UTC)", help_text="Empty: from now on.")
    ends_at = MomentUTC(label="Until (UTC)", help_text="Not due after. Empty: it has no end.")
    description = JobField(label="The job, as YAML", help_text="As it would be submitted. Its processes find the time in GPUFLEET_DUE_AT.")
    reason = forms.CharField(max_length=280, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(self, *arguments: Any, owned: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not owned:
            del self.fields["description"]

    WHEN, SPAN = ("name", "cron", "zone"), ("starts_at", "ends_at")

    @property
    def when_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.WHEN]

    @property
    def span_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in self.SPAN]

    @property
    def job_fields(self) -> list[forms.BoundField]:
        """The job first, where it may be written."""
        rest = [field for field in self.visible_fields() if field.name not in (*self.WHEN, *self.SPAN)]
        return sorted(rest, key=lambda field: field.name != "description")
