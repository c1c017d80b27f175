"""What the forms of reservations send. The services decide what is allowed; a form only reads."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from django import forms

from gpufleet.core.recurrence import moment_of
from gpufleet.core.zones import zone_fault
from quotas.forms import ZonePicker
from quotas.models import Idle, Reservation, Shape
from quotas.models.windows import REPEATS
from scheduler.engine.model.values import CLASSES

CHOICES = (("", "Once"), *REPEATS.items(), ("custom", "By a rule"))
CLOCK = "%Y-%m-%dT%H:%M"


class LocalField(forms.DateTimeField):
    """A time by the wall clock of the zone that the form names."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format=CLOCK)

    def to_python(self, value: object) -> Any:
        text = str(value or "").strip()
        if not text:
            return None
        try:
            return datetime.fromisoformat(text).replace(tzinfo=None)
        except ValueError:
            raise forms.ValidationError("Write a time such as 2026-12-01T09:00.") from None


class TimedForm(forms.Form):
    """What applies once or again and again, by the clock of a zone: the fields `start`, `end`, `zone`, `repeats` and `rule`."""

    MORE: ClassVar[tuple[str, ...]] = ("rule",)  # fields that are folded away
    # The fields that people see, by those of the services.
    SHOWN: ClassVar[dict[str, str]] = {"starts_at": "start", "ends_at": "end"}

    @property
    def first_fields(self) -> list[Any]:
        return [field for field in self.visible_fields() if field.name not in (*self.MORE, "reason")]

    @property
    def more_fields(self) -> list[Any]:
        return [field for field in self.visible_fields() if field.name in self.MORE]

    @property
    def more_is_open(self) -> bool:
        return any(self[name].errors for name in self.MORE if name in self.fields) or self["repeats"].value() == "custom"

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        if "zone" in data and (fault := zone_fault(data["zone"])):
            self.add_error("zone", fault)
        if data.get("repeats") == "custom" and not data.get("rule"):
            self.add_error("rule", "State the rule.")
        return data

    def times_given(self) -> dict[str, Any]:
        """As the services take them."""
        data = self.cleaned_data
        zone = ZoneInfo(data["zone"])
        return {
            "zone": data["zone"],
            "starts_at": moment_of(data["start"], zone),
            "ends_at": moment_of(data["end"], zone) if data["end"] is not None else None,
            "rule": data["rule"] if data["repeats"] == "custom" else data["repeats"],
        }

    def show(self, faults: Mapping[str, Sequence[str]]) -> None:
        """Faults of the services at the fields that people see."""
        for path, texts in faults.items():
            name = self.SHOWN.get(path, path)
            self.add_error(name if name in self.fields else None, list(texts))

    @property
    def unclear(self) -> list[str]:
        """What is wrong with what was typed, for a preview: not what is still missing."""
        found = []
        for name, faults in self.errors.as_data().items():
            label = f"{self[name].label}: " if name in self.fields else ""
            found += [f"{label}{text}" for fault in faults if fault.code != "required" for text in fault.messages]
        return found


def times_written(of: Any) -> dict[str, Any]:
    """What these fields begin with for a row that there is."""
    times, known = of.times, dict(CHOICES)
    custom = of.rule not in known
    return {"start": times.start, "end": times.end, "zone": of.zone, "repeats": "custom" if custom else of.rule, "rule": of.rule if custom else ""}


class ReservationForm(TimedForm):
    """`owners` are the teams and classes that it may be for; one that is changed keeps its own."""

    name = forms.CharField(max_length=80, help_text="Shown in the calendar and in waiting reasons.")
    owner = forms.ChoiceField(label="For", help_text="A team and all below it, or a class of jobs (a floor).")
    gpu_type = forms.ChoiceField(label="GPU type")
    amount = forms.IntegerField(min_value=1, label="How many", widget=forms.NumberInput(attrs={"inputmode": "numeric"}))
    shape = forms.ChoiceField(label="Of", help_text="GPUs anywhere, whole nodes, or GPUs in one block of the topology.")
    start = LocalField(label="Start")
    end = LocalField(required=False, label="End", help_text="Empty: it has no end (standing).")
    zone = forms.CharField(
        max_length=60,
        label="Time zone",
        help_text="Times and repeats follow this clock, also over daylight saving.",
        widget=ZonePicker,
    )
    repeats = forms.ChoiceField(choices=CHOICES, required=False)
    rule = forms.CharField(max_length=300, required=False, label="RFC 5545 rule", help_text="Such as FREQ=WEEKLY;BYDAY=MO,WE;UNTIL=20261231T000000.")
    notice_min = forms.IntegerField(
        min_value=0, initial=10, label="Notice (minutes)", help_text="Jobs in the way are asked to leave this long before the start."
    )
    lead_min = forms.IntegerField(min_value=0, initial=15, label="Lead time (minutes)", help_text="No job in the way starts within this time.")
    decay_min = forms.IntegerField(
        min_value=1, required=False, label="Release if unused after (minutes)", help_text="Empty: unused windows are kept to their end."
    )
    idle = forms.ChoiceField(choices=Idle.choices, initial=Idle.HELD, label="Unused GPUs")
    purpose = forms.CharField(max_length=300, required=False, label="Purpose")
    reason = forms.CharField(max_length=280, required=False)
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)

    MORE = ("rule", "notice_min", "lead_min", "decay_min", "idle", "purpose")
    SHOWN = TimedForm.SHOWN | {
        "quota": "owner",
        "job_class": "owner",
        "gpus": "amount",
        "nodes": "amount",
        "level": "shape",
        "notice_s": "notice_min",
        "lead_s": "lead_min",
        "decay_s": "decay_min",
    }

    def __init__(
        self,
        data: Any = None,
        *,
        teams: Sequence[str],
        classes: bool,
        types: Sequence[str],
        levels: Sequence[str],
        of: Reservation | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data, **options)
        floors = [(f"class:{name}", f"All {name} jobs (floor)") for name in reversed(CLASSES)] if classes else []
        self.fields["owner"].choices = [*((path, path) for path in teams), *floors]  # type: ignore[attr-defined]
        self.fields["gpu_type"].choices = [(name, name) for name in types]  # type: ignore[attr-defined]
        blocks = [(f"block:{level}", f"GPUs in one {level}") for level in levels]
        self.fields["shape"].choices = [("gpus", "GPUs"), ("nodes", "Whole nodes"), *blocks]  # type: ignore[attr-defined]
        if of is not None:
            del self.fields["owner"]

    def given(self) -> dict[str, Any]:
        """As the services take it."""
        data = self.cleaned_data
        shape, _, level = data["shape"].partition(":")
        found = {
            "name": data["name"],
            "gpu_type": data["gpu_type"],
            "gpus": None if shape == "nodes" else data["amount"],
            "nodes": data["amount"] if shape == "nodes" else None,
            "level": level or None,
            **self.times_given(),
            "notice_s": 60 * data["notice_min"],
            "lead_s": 60 * data["lead_min"],
            "decay_s": None if data["decay_min"] is None else 60 * data["decay_min"],
            "idle": data["idle"],
            "purpose": data["purpose"],
        }
        if "owner" in data:
            of_class = data["owner"].startswith("class:")
            found |= {"quota": None if of_class else data["owner"], "job_class": data["owner"].removeprefix("class:") if of_class else None}
        return found | ({"reason": data["reason"]} if data.get("reason") else {})


def written(of: Reservation) -> dict[str, Any]:
    """What a form begins with for a reservation that there is."""
    return {
        "name": of.name,
        "gpu_type": of.gpu_type,
        "amount": of.nodes if of.shape == Shape.NODES else of.gpus_milli // 1000,
        "shape": f"block:{of.level}" if of.shape == Shape.BLOCK else of.shape,
        **times_written(of),
        "notice_min": of.notice_s // 60,
        "lead_min": of.lead_s // 60,
        "decay_min": None if of.decay_s is None else of.decay_s // 60,
        "idle": of.idle,
        "purpose": of.purpose,
        "revision": of.revision,
    }


def local_at(moment: datetime, zone: str) -> datetime:
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, second=0, microsecond=0)


def moment_named(text: str, zone: ZoneInfo) -> datetime | None:
    """A time in an address: by the clock of a zone where it states none."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        return read.astimezone(UTC) if read.tzinfo is not None else moment_of(read, zone)
    except OverflowError:
        return None
