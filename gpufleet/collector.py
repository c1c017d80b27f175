"""Python's garbage collector. It imports nothing of ours: it is told before anything else is read."""

import gc


def collect_seldom() -> None:
    """Let it look after 10,000 new objects, not after 700. Of those that a program begins with it finds none that may go, and to look through them
    took a seventh of the time until a command or a worker begins, and a quarter of all that `migrate` takes. It is never told to look more often."""
    if gc.get_threshold()[0] < 10_000:
        gc.set_threshold(10_000, 20, 20)
