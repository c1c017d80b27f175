"""The tables of the quota tree (`tree`), with people's roles on it, of prices (`prices`), of its changes (`changes`), of what was used (`ledger`), of
capacity held by the calendar (`windows`), of budgets (`budgets`), and of files of months (`exports`)."""

from quotas.models.budgets import AtStop, Budget, BudgetDay, BudgetException, BudgetPeriod, BudgetUnit
from quotas.models.changes import OPEN_STATES, ChangeState, QuotaChange, QuotaVersion
from quotas.models.charges import (
    ChargeIdle,
    ChargeIdleDay,
    ChargeLine,
    ChargeMode,
    ChargeMonth,
    ChargeSum,
    ChargeUse,
    CostMail,
    CostMailing,
    MailState,
    Reconciliation,
)
from quotas.models.exports import EXPORTING, CostExport, ExportState
from quotas.models.ledger import CHARGED, LedgerClock, LedgerEntry, Phase, ShareClass
from quotas.models.prices import CardState, RateCard, RateClass, RateLine
from quotas.models.tree import Colocation, Estimates, NodeKind, QuotaNode, QuotaShare, Role, RoleBinding, ServiceToken, SharingTrust, TypeChoice
from quotas.models.windows import Idle, Reservation, ReservationState, Shape, Window

__all__ = [
    "CHARGED",
    "EXPORTING",
    "OPEN_STATES",
    "AtStop",
    "Budget",
    "BudgetDay",
    "BudgetException",
    "BudgetPeriod",
    "BudgetUnit",
    "CardState",
    "ChangeState",
    "ChargeIdle",
    "ChargeIdleDay",
    "ChargeLine",
    "ChargeMode",
    "ChargeMonth",
    "ChargeSum",
    "ChargeUse",
    "Colocation",
    "CostExport",
    "CostMail",
    "CostMailing",
    "Estimates",
    "ExportState",
    "Idle",
    "LedgerClock",
    "LedgerEntry",
    "MailState",
    "NodeKind",
    "Phase",
    "QuotaChange",
    "QuotaNode",
    "QuotaShare",
    "QuotaVersion",
    "RateCard",
    "RateClass",
    "RateLine",
    "Reconciliation",
    "Reservation",
    "ReservationState",
    "Role",
    "RoleBinding",
    "ServiceToken",
    "Shape",
    "ShareClass",
    "SharingTrust",
    "TypeChoice",
    "Window",
]
