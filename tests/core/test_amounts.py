"""Amounts as people write them."""

import pytest
from django.core.exceptions import ValidationError

from gpufleet.core.amounts import ungrouped
from quotas.exchange import _amount
from quotas.forms import GpusField


@pytest.mark.parametrize(
    ("text", "plain"), [("1,024", "1024"), ("12,345,678.5", "12345678.5"), ("-1,000", "-1000"), ("0.5", "0.5"), ("none", "none")]
)
def test_commas_between_thousands_are_left_out(text: str, plain: str) -> None:
    assert ungrouped(text) == plain


@pytest.mark.parametrize("text", ["0,5", "1,50", "1234,500", "1,0000", ",500", "1.5,000"])
def test_no_other_comma_is_left_out(text: str) -> None:
    """A guarantee of `0,5` GPUs was read as 5."""
    faults: dict[str, list[str]] = {}

    assert ungrouped(text) == text
    with pytest.raises(ValidationError, match="Write a number"):
        GpusField(empty=0).clean(text)
    assert _amount("limit", text, "limit", faults) is None
    assert list(faults) == ["limit"]


def test_gpus_are_read_with_their_thousands() -> None:
    assert GpusField(empty=0).clean("1,024") == 1_024_000
    assert GpusField(empty=0).clean("0.125") == 125
