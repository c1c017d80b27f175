"""What Django says of a value that a field can't take, in the words of this console: what to enter, not what to ensure."""

from django.core import validators


def words_set() -> None:
    validators.MinValueValidator.message = "Enter %(limit_value)s or more."
    validators.MaxValueValidator.message = "Enter %(limit_value)s or less."
    validators.MaxLengthValidator.message = "Use at most %(limit_value)d characters; it has %(show_value)d."
    validators.validate_slug.message = "Use letters, digits, - and _ only."
