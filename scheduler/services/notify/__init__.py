"""The outbox, webhooks, notifications and their delivery."""
