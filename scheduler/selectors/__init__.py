"""Reads: the one door to rows. Hardware is visible to everyone with a role; who holds it is named only where the reader may see."""
