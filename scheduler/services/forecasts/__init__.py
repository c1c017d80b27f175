"""Fit checks, predicted starts and proposals."""
