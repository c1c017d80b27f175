"""The tables of the quota tree (`tree`), with people's roles on it and the rates, of its changes (`changes`), and of what was used (`ledger`)."""

from quotas.models.changes import ChangeState, QuotaChange, QuotaVersion
from quotas.models.ledger import LedgerClock, LedgerEntry, Phase, ShareClass
from quotas.models.tree import NodeKind, QuotaNode, QuotaShare, Rate, Role, RoleBinding, ServiceToken, SharingTrust

__all__ = [
    "ChangeState",
    "LedgerClock",
    "LedgerEntry",
    "NodeKind",
    "Phase",
    "QuotaChange",
    "QuotaNode",
    "QuotaShare",
    "QuotaVersion",
    "Rate",
    "Role",
    "RoleBinding",
    "ServiceToken",
    "ShareClass",
    "SharingTrust",
]
