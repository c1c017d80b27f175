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


_APPLICATION = "Restart the application; check the GPU when it repeats on one."
_DRIVER = "Nothing for the moment; tell support when it repeats."
_LINK = "Reset the GPUs of the link; its message tells more."
_ROWS = (
    (8, "GPU stopped processing", APP, "Restart the application."),
    (11, "Invalid or corrupted push buffer stream", APP, "Check the application."),
    (13, "Graphics engine exception", APP, "Check the application; if it repeats on one GPU, run diagnostics."),
    (25, "Illegal push buffer stream", APP, "Check the application."),
    (31, "GPU memory page fault", APP, "Check the application for illegal memory access."),
    (32, "Invalid or corrupted push buffer stream", APP, "Check the application and PCIe."),
    (37, "Driver firmware error", APP, "Check the driver version."),
    (38, "Driver firmware watchdog", WATCH, _DRIVER),
    *((code, "Copy engine exception", APP, _APPLICATION) for code in (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))),
    (43, "GPU stopped processing", APP, "Check the application."),
    (44, "Fault in a context switch", WATCH, _DRIVER),
    (45, "Channel torn down, as after an earlier error", APP, "Look for the error before it."),
    (46, "GPU stopped processing and timed out", RESET, "Reset the GPU."),
    (48, "Double-bit ECC error", RESET, "Drain the node and reset the GPU; replace it when it repeats."),
    (54, "Auxiliary power is not connected", SUPPORT, "Check the power cables of the GPU."),
    (60, "Video processor exception", APP, _APPLICATION),
    (61, "Internal micro-controller breakpoint", RESET, "Reset the GPU."),
    (62, "Internal micro-controller halt", RESET, "Reset the GPU."),
    (63, "Memory row remapped", WATCH, "Reset the GPU when it is free, so that the remap takes effect."),
    (64, "Row remap failed", SUPPORT, "Drain the node; the GPU needs replacement."),
    *((code, "Illegal access by the driver", WATCH, _DRIVER) for code in (66, 67)),
    (69, "Graphics engine class error", APP, "Check the application."),
    *((code, "Video decoder exception", APP, _APPLICATION) for code in (68, 83, 84, 88, 89, 96, 97, 98)),
    (74, "NVLink error", RESET, "Check the link on both ends; reset the GPUs."),
    (78, "vGPU did not start", WATCH, "Update driver and firmware."),
    (79, "GPU has fallen off the bus", SUPPORT, "Restart the node; check power, PCIe and cooling."),
    (80, "Corrupted data sent to the GPU", APP, "Check the application and PCIe."),
    *((code, "JPEG decoder exception", APP, _APPLICATION) for code in (82, *range(99, 106))),
    *((code, "Optical flow exception", APP, _APPLICATION) for code in (86, 139)),
    (92, "High rate of single-bit ECC errors", WATCH, "Run diagnostics when the GPU is free."),
    (93, "InfoROM written too often", WATCH, _DRIVER),
    (94, "Contained memory error", APP, "Restart the application; the GPU may serve on."),
    (95, "Uncontained memory error", RESET, "Drain the node and reset the GPU."),
    *((code, "Test message of the board's management", WATCH, "Nothing.") for code in (106, 107)),
    *((code, "NVLink access refused", WATCH, "Look for an error of another GPU of the link at that time.") for code in (108, 137)),
    (109, "Context switch timeout", RESET, "Reset the GPU."),
    (110, "Security fault", RESET, "Reset the GPU; check driver and firmware when it repeats."),
    (119, "GPU system processor timeout", RESET, "Reset the GPU; restart the node when that fails."),
    (120, "GPU system processor error", RESET, "Reset the GPU; restart the node when that fails."),
    (121, "Chip-to-chip link error", WATCH, "Run diagnostics when the GPU is free."),
    (136, "Link training failed", RESET, "Reset the GPU."),
    (140, "Unrecovered ECC error", RESET, "Drain the node and reset the GPU."),
    (141, "CUDA fast path error", WATCH, _DRIVER),
    (142, "Video encoder exception", SUPPORT, "Contact support."),
    (143, "GPU could not be initialised", RESET, "Reset the GPU; contact support when that fails."),
    (145, "NVLink read, write or link error", RESET, _LINK),
    *((code, "NVLink error", RESET, _LINK) for code in (144, 146, 147, 148, 149, 150)),
    (151, "Key rotation failed", RESET, "Restart the machine."),
    *((code, "Deep learning accelerator error", WATCH, _DRIVER) for code in (152, 153)),
    (154, "Recovery action changed", WATCH, "Do what its message says."),
    (155, "NVLink error found by software", RESET, "Reset the GPU."),
    (156, "Part of the GPU retired", RESET, "Reset the GPU, so that it takes effect."),
    (157, "Part of the GPU could not be retired", WATCH, _DRIVER),
    (158, "GPU timed out for good", RESET, "Reset the GPU."),
    (159, "Error between processor and GPU", WATCH, "Look for the error before it."),
    (160, "Memory channel retired", WATCH, _DRIVER),
    (161, "Memory channel could not be retired", WATCH, _DRIVER),
    *((code, "Power smoothing changed or worn", WATCH, _DRIVER) for code in range(162, 166)),
    *((code, "NVLink error of confidential computing", WATCH, _DRIVER) for code in (166, 170)),
    (167, "PCIe timed out for good", RESET, "Reset the GPU; restart the node when that fails."),
    (168, "GPU memory is smaller after errors", RESET, "Restart the node."),
    (169, "Internal micro-controller halt", RESET, "Reset the GPU."),
    *((code, "Details of an uncorrectable memory error", WATCH, "Follow the XID 48 beside it.") for code in (171, 172)),
)
XIDS: dict[int, Xid] = {code: Xid(code, meaning, group, advice) for code, meaning, group, advice in _ROWS}


def xid_of(code: int) -> Xid:
    """What the catalogue says of a number. One that is not in it, or not in use, is to be watched: nobody says that the GPU needs anything."""
    return XIDS.get(code) or Xid(code, "Not in the catalogue", WATCH, "Look it up in NVIDIA's catalogue of XIDs.")
