"""What a GPU can compute at most: dense matrix products of its tensor cores, in TFLOP/s, by the vendor's data sheets.

A data sheet that tells only of sparse products tells twice as much. A model in several forms (SXM, PCIe, NVL) has a row for each; a type whose
name has no form is taken for the one that is sold most.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal

Precision = Literal["bf16", "fp16", "fp8", "fp4", "tf32", "fp32"]

# The words that all stand in a type's name -> its peaks. The first row that fits counts, so that a form stands before its model.
_PEAKS: tuple[tuple[tuple[str, ...], Mapping[str, float]], ...] = (
    (("GB200",), {"bf16": 2500, "fp16": 2500, "fp8": 5000, "fp4": 10_000, "tf32": 1250, "fp32": 80}),
    (("B200",), {"bf16": 2250, "fp16": 2250, "fp8": 4500, "fp4": 9000, "tf32": 1125, "fp32": 75}),
    (("GH200",), {"bf16": 989, "fp16": 989, "fp8": 1979, "tf32": 494, "fp32": 67}),
    (("H200", "NVL"), {"bf16": 835, "fp16": 835, "fp8": 1671, "tf32": 417, "fp32": 60}),
    (("H200",), {"bf16": 989, "fp16": 989, "fp8": 1979, "tf32": 494, "fp32": 67}),
    (("H100", "PCIE"), {"bf16": 756, "fp16": 756, "fp8": 1513, "tf32": 378, "fp32": 51}),
    (("H100", "NVL"), {"bf16": 835, "fp16": 835, "fp8": 1671, "tf32": 417, "fp32": 60}),
    (("H100",), {"bf16": 989, "fp16": 989, "fp8": 1979, "tf32": 494, "fp32": 67}),
    (("H20",), {"bf16": 148, "fp16": 148, "fp8": 296, "tf32": 74, "fp32": 44}),
    (("A100",), {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5}),
    (("A30",), {"bf16": 165, "fp16": 165, "tf32": 82, "fp32": 10.3}),
    (("A40",), {"bf16": 149.7, "fp16": 149.7, "tf32": 74.8, "fp32": 37.4}),
    (("A10",), {"bf16": 125, "fp16": 125, "tf32": 62.5, "fp32": 31.2}),
    (("L40S",), {"bf16": 362, "fp16": 362, "fp8": 733, "tf32": 183, "fp32": 91.6}),
    (("L40",), {"bf16": 181, "fp16": 181, "fp8": 362, "tf32": 90.5, "fp32": 90.5}),
    (("L4",), {"bf16": 121, "fp16": 121, "fp8": 242, "tf32": 60, "fp32": 30.3}),
    (("V100",), {"fp16": 125, "fp32": 15.7}),
    (("T4",), {"fp16": 65, "fp32": 8.1}),
)


@cache
def peak_tflops(gpu_type: str, precision: str) -> float | None:
    """The peak of one GPU of a type; None where it is not known, or the type's tensor cores do not compute so."""
    words = set(re.split(r"[^A-Z0-9]+", gpu_type.upper()))
    peaks = next((found for needed, found in _PEAKS if words.issuperset(needed)), {})
    return peaks.get(precision)
