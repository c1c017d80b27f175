"""Faults that a service can tell its caller about. Bad values are Django's `ValidationError` with a message per field; a right that is missing is
`PermissionDenied`; what a person may not see does not exist (`Http404`). What remains is here.
"""


class Conflict(Exception):
    """Somebody else changed the row since it was read. Nothing was written; read it again and decide anew."""
