"""Watts of a GPU as its maker states them: the limit to which it draws by default, by the beginning of its type's name."""

KNOWN = {
    "GB300": 1400,
    "GB200": 1200,
    "B300": 1400,
    "B200": 1000,
    "GH200": 900,
    "H200-NVL": 600,
    "H200": 700,
    "H100-PCIE": 350,
    "H100-NVL": 400,
    "H100": 700,
    "H800": 700,
    "H20": 400,
    "A100-PCIE-40GB": 250,
    "A100-PCIE": 300,
    "A100": 400,
    "A800": 400,
    "A40": 300,
    "A30": 165,
    "A16": 250,
    "A10": 150,
    "A2": 60,
    "L40S": 350,
    "L40": 300,
    "L4": 72,
    "T4": 70,
    "V100": 300,
    "P100": 250,
    "RTX-PRO-6000": 600,
    "RTX-6000": 300,
    "RTX-4090": 450,
    "RTX-3090": 350,
    "MI355X": 1400,
    "MI325X": 1000,
    "MI300X": 750,
    "MI250X": 560,
}
ASSUMED = 1000  # of a type of which nobody has said anything


def maker_watts(gpu_type: str) -> int | None:
    """None for a type that is not known here."""
    name = gpu_type.upper().replace("_", "-").replace(" ", "-").removeprefix("NVIDIA-").removeprefix("AMD-")
    found = [one for one in KNOWN if name == one or name.startswith(f"{one}-")]
    return KNOWN[max(found, key=len)] if found else None


def rated_watts(gpu_type: str, stated: int | None) -> int:
    """What the operator has stated, else its maker, else an assumption on the safe side."""
    return stated or maker_watts(gpu_type) or ASSUMED
