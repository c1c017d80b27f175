"""The rules that a new console starts with. Operators change them on the page Health rules."""

from typing import Any

# name, signal, group, threshold, window, clear below, clear after (minutes), action
ROWS: tuple[tuple[str, str, str, int, int, int, int, str], ...] = (
    ("Thermal throttling", "thermal", "", 60, 5, 20, 10, "suspect"),
    ("Throttling goes on", "thermal", "", 900, 30, 60, 15, "drain"),
    ("Power brake", "power_brake", "", 60, 5, 20, 10, "suspect"),
    ("Too hot", "temperature", "", 95, 5, 90, 10, "suspect"),
    ("Corrected ECC errors", "ecc_corrected", "", 100, 60, 10, 60, "note"),
    ("Uncorrected ECC error", "ecc_uncorrected", "", 1, 60, 1, 60, "drain"),
    ("Rows remapped", "row_remaps", "", 2, 1440, 1, 1440, "suspect"),
    ("Row remap failed", "remap_failed", "", 1, 15, 1, 60, "drain"),
    ("NVLink errors", "nvlink_errors", "", 100, 10, 10, 15, "suspect"),
    ("PCIe downgrade", "pcie_lost", "", 25, 10, 25, 10, "suspect"),
    ("PCIe replays", "pcie_replays", "", 1000, 60, 100, 60, "note"),
    ("NIC errors", "nic_errors", "", 1000, 10, 100, 15, "suspect"),
    ("XID: reset needed", "xid", "reset", 1, 15, 1, 30, "drain"),
    ("XID: hardware", "xid", "support", 1, 15, 1, 30, "drain"),
    ("XID: watch", "xid", "watch", 1, 60, 1, 60, "note"),
    ("XID: many of applications", "xid", "app", 20, 60, 5, 60, "note"),
    ("Silent node", "heartbeat", "", 180, 5, 60, 5, "down"),
    # The nominal speed is the inventory's: a wrong one there must not keep gangs off a whole fleet.
    ("NIC speed below nominal", "nic_lost", "", 25, 10, 25, 10, "note"),
    ("TCP retransmissions", "retransmits", "", 200, 10, 100, 15, "note"),
    ("PCIe saturated", "pcie_saturated", "", 600, 15, 120, 15, "note"),
)
FIELDS = ("name", "signal", "group", "threshold", "window_minutes", "clear_below", "clear_minutes", "action")


def default_rules() -> list[dict[str, Any]]:
    return [dict(zip(FIELDS, row, strict=True)) for row in ROWS]
