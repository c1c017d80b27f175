"""Capacity held by the calendar: how much fits, who must leave for it, and the lists of it."""
