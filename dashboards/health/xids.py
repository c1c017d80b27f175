"""XIDs, the driver's error numbers, by what NVIDIA's catalogue says is to be done. Ampere and newer."""

from dataclasses import dataclass

# Restart the application; watch the GPU; reset the GPU or restart the node; contact support.
APP, WATCH, RESET, SUPPORT = "app", "watch", "reset", "support"
GROUPS = {APP: "Application", WATCH: "Watch", RESET: "Reset", SUPPORT: "Contact support"}


@dataclass(frozen=True, slots=True)
class Xid:
    code: int
    meaning: str
    group: str
    advice: str


_ROWS = (
    (8, "GPU stopped processing", APP, "Restart the application."),
    (11, "Invalid or corrupted push buffer stream", APP, "Check the application."),
    (13, "Graphics engine exception", APP, "Check the application; if it repeats on one GPU, run diagnostics."),
    (31, "GPU memory page fault", APP, "Check the application for illegal memory access."),
    (32, "Invalid or corrupted push buffer stream", APP, "Check the application and PCIe."),
    (37, "Driver firmware error", APP, "Check the driver version."),
    (43, "GPU stopped processing", APP, "Check the application."),
    (45, "Channel torn down, as after an earlier error", APP, "Look for the error before it."),
    (48, "Double-bit ECC error", RESET, "Drain the node and reset the GPU; replace it when it repeats."),
    (61, "Internal micro-controller breakpoint", RESET, "Reset the GPU."),
    (62, "Internal micro-controller halt", RESET, "Reset the GPU."),
    (63, "Memory row remapped", WATCH, "Reset the GPU when it is free, so that the remap takes effect."),
    (64, "Row remap failed", SUPPORT, "Drain the node; the GPU needs replacement."),
    (68, "Video decoder exception", APP, "Check the application."),
    (69, "Graphics engine class error", APP, "Check the application."),
    (74, "NVLink error", RESET, "Check the link on both ends; reset the GPUs."),
    (79, "GPU has fallen off the bus", SUPPORT, "Restart the node; check power, PCIe and cooling."),
    (92, "High rate of single-bit ECC errors", WATCH, "Run diagnostics when the GPU is free."),
    (94, "Contained memory error", APP, "Restart the application; the GPU may serve on."),
    (95, "Uncontained memory error", RESET, "Drain the node and reset the GPU."),
    (109, "Context switch timeout", RESET, "Reset the GPU."),
    (110, "Security fault", SUPPORT, "Restart the node; contact support."),
    (119, "GPU system processor timeout", RESET, "Reset the GPU; restart the node when that fails."),
    (120, "GPU system processor error", RESET, "Reset the GPU; restart the node when that fails."),
    (121, "Chip-to-chip link error", WATCH, "Run diagnostics when the GPU is free."),
    (136, "Link training failed", RESET, "Reset the GPU."),
    (140, "Unrecovered ECC error", RESET, "Drain the node and reset the GPU."),
    (143, "GPU could not be initialised", SUPPORT, "Restart the node; contact support."),
    (145, "NVLink read, write or link error", RESET, "Reset the GPUs of the link."),
    (149, "NVLink error", RESET, "Reset the GPUs of the link."),
    (154, "Recovery action changed", WATCH, "Do what its message says."),
)
XIDS: dict[int, Xid] = {code: Xid(code, meaning, group, advice) for code, meaning, group, advice in _ROWS}


def xid_of(code: int) -> Xid:
    """What the catalogue says of a number. One that is not in it is for support."""
    return XIDS.get(code) or Xid(code, "Not in the catalogue", SUPPORT, "Look it up in NVIDIA's catalogue of XIDs.")
