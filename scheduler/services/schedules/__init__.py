"""Writes of schedules, and the turn that submits what is due."""
