"""`gpufleet storm`: the whole control plane through days of bad weather, in one process, on a clock that is drawn from a seed.

Services, tick, engine, apply, dispatch, the simulated back-end and the ledger are the real ones over a database of their own. Only the clock, the
submissions and the faults are drawn, so a seed is a story that can be told again: what is found once is a test for ever.
"""
