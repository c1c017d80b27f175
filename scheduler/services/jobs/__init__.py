"""Writes of jobs: submission, edits, bulk actions, templates, checkpoints."""
