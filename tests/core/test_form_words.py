"""A field says what to enter."""

from decimal import Decimal

from django import forms


class Order(forms.Form):
    name = forms.SlugField(max_length=8)
    count = forms.IntegerField(min_value=1)
    share = forms.DecimalField(max_value=Decimal("0.5"))


def test_a_field_says_what_to_enter():
    faults = Order({"name": "no name at all", "count": -7, "share": "0.75"}).errors

    assert faults == {
        "name": ["Use letters, digits, - and _ only.", "Use at most 8 characters; it has 14."],
        "count": ["Enter 1 or more."],
        "share": ["Enter 0.5 or less."],
    }
