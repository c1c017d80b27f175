"""Rate cards (FIN-1): what a GPU hour costs from a moment to another one. An active card is never changed, only replaced by a version."""

from django.db import models
from django.db.models import F, Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now


class CardState(models.TextChoices):
    DRAFT = "draft", "Draft"
    ACTIVE = "active", "Active"
    REPLACED = "replaced", "Replaced"
    DISCARDED = "discarded", "Discarded"


class RateClass(models.TextChoices):
    """For what work a price holds. Work that may always be preempted is `preemptible`, in whichever class of the ledger it stands."""

    ANY = "", "Any class"
    GUARANTEED = "guaranteed", "Guaranteed"
    RESERVED = "reserved", "Reserved"
    BORROWED = "borrowed", "Borrowed"
    PREEMPTIBLE = "preemptible", "Preemptible"


class RateCard(models.Model):
    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=80)
    currency = models.CharField(max_length=3)
    valid_from = MomentField()
    valid_to = MomentField(null=True, blank=True, help_text="Exclusive; null: until another card begins.")
    state = models.CharField(max_length=10, choices=CardState.choices, default=CardState.DRAFT)
    version = models.PositiveIntegerField(default=1)
    replaces = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="replaced_by")
    note = models.CharField(max_length=280, blank=True)
    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+", help_text="Who wrote its prices last.")
    author_name = models.CharField(max_length=160)
    created_at = MomentField(default=now)
    approved_name = models.CharField(max_length=160, blank=True)
    approved_at = MomentField(null=True, blank=True)
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        db_table = "rate_card"
        indexes = [models.Index(fields=["state", "valid_from"], name="rate_card_state")]
        constraints = [
            models.CheckConstraint(condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")), name="rate_card_ends_after_start"),
            models.UniqueConstraint(fields=["valid_from"], condition=Q(state="active"), name="rate_card_once_per_moment"),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.name}"


class RateLine(models.Model):
    """One price of a card, in micro-units of the currency for a GPU hour. Empty fields stand for any; the line that says most holds."""

    card = models.ForeignKey(RateCard, on_delete=models.CASCADE, related_name="lines")
    gpu_type = models.CharField(max_length=60)
    share_class = models.CharField(max_length=12, choices=RateClass.choices, blank=True)
    tier = models.CharField(max_length=60, blank=True, help_text="whole, share, mig, or mig:PROFILE.")
    pool = models.CharField(max_length=130, blank=True, help_text="CLUSTER/POOL.")
    list_micros = models.PositiveBigIntegerField()
    contracted_micros = models.PositiveBigIntegerField(help_text="What was agreed; the list price where nothing was.")
    discount_ppm = models.PositiveIntegerField(default=0, help_text="Off the contracted price, in millionths.")

    class Meta:
        db_table = "rate_line"
        constraints = [
            models.UniqueConstraint(fields=["card", "gpu_type", "share_class", "tier", "pool"], name="rate_line_once"),
            models.CheckConstraint(condition=Q(discount_ppm__lte=1_000_000), name="rate_line_discount"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_type} {self.share_class} {self.tier} {self.pool}".strip()
