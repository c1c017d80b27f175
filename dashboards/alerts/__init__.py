"""Alerts (UI-12): rules over figures of the fleet, who is told, and the log of what happened."""
