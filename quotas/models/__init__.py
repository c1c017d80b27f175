"""The tables of the quota tree (`tree`), with people's roles on it and the rates, and of what was used (`ledger`)."""

from quotas.models.ledger import LedgerClock, LedgerEntry, Phase, ShareClass
from quotas.models.tree import NodeKind, QuotaNode, QuotaShare, Rate, Role, RoleBinding, ServiceToken

__all__ = [
    "LedgerClock",
    "LedgerEntry",
    "NodeKind",
    "Phase",
    "QuotaNode",
    "QuotaShare",
    "Rate",
    "Role",
    "RoleBinding",
    "ServiceToken",
    "ShareClass",
]
