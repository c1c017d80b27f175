"""Told before a process of the console ends, so that nothing long keeps it: listeners end what they have begun, at once."""

from django.dispatch import Signal

stopping = Signal()
