"""Recurring jobs: the schema of a schedule and when it is due."""
