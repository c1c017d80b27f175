"""Writes of the scheduling loop: lease, tick, plan to rows, dispatch, observation, timers."""
