"""The words of a filter line."""

import pytest
from django.db.models import Q

from gpufleet.core.filters import Choice, Flag, Text
from gpufleet.core.tokens import tokens_read

FILTERS = (
    Choice("state", "State", (("queued", "Queued"), ("active", "Active"), ("inactive", "Not active"))),
    Choice("gpu_type", "GPU type", (("H100-SXM-80GB", "H100-SXM-80GB"), ("H100-PCIE", "H100-PCIE"), ("A100", "A100"))),
    Text("team", "Team"),
    Text("template", "Template"),
    Flag("held", "Hold", Q(), "Held back", "Not held"),
)


@pytest.mark.parametrize(
    ("line", "values", "words"),
    [
        ("team:vision state:queued", {"team": ["vision"], "state": ["queued"]}, ""),
        ("state:queued,ACTIVE", {"state": ["queued", "active"]}, ""),
        ("state:active", {"state": ["active"]}, ""),
        ("gpu:h100", {"gpu_type": ["H100-SXM-80GB", "H100-PCIE"]}, ""),
        ("gpu-type:A100 big", {"gpu_type": ["A100"]}, "big"),
        ('team:"a b" "c d" e', {"team": ["a b"]}, '"c d" e'),
        ("te:x t:y", {}, "te:x t:y"),
        ("nosuch:thing http://x", {}, "nosuch:thing http://x"),
        ('"team:vision"', {}, "team:vision"),
        ("state:lost", {"state": ["lost"]}, ""),
        ('held:"not held"', {"held": ["no"]}, ""),
    ],
)
def test_a_word_with_the_name_of_a_filter_sets_that_filter(line, values, words):
    told = tokens_read(line, FILTERS)

    assert (told.values, told.words, told.empty) == (values, words, [])


def test_a_name_without_a_value_is_told_with_an_example():
    assert tokens_read("state: held:", FILTERS).empty == [("state", "queued"), ("held", "yes")]
