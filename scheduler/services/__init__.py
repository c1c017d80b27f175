"""Writes: each is a transaction that checks who asks, says what it changed in the audit log, and tells the live pages."""
