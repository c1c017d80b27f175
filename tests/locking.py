"""Two transactions at once on PostgreSQL, to see whether they wait for each other in a ring."""

import threading
import time
from collections.abc import Callable

from django.db import OperationalError, connection, transaction

from scheduler.services.loop.steps import jobs_locked


def together(write: Callable[[], object], mine: Callable[[], object], *, job: int) -> list[str]:
    """What becomes of a write ("done") beside a transaction that holds a job, and goes on with something of its own ("mine") once the write waits or
    is over. Of what fails, the fault."""
    told: list[str] = []

    def noted(name: str, act: Callable[[], object]) -> None:
        try:
            act()
            told.append(name)
        except OperationalError as fault:
            told.append(str(fault).splitlines()[0])

    def other() -> None:
        noted("done", write)
        connection.close()

    thread = threading.Thread(target=other)

    def holding() -> None:
        with transaction.atomic():
            jobs_locked([job])
            thread.start()
            until = time.monotonic() + 60
            with connection.cursor() as cursor:
                while time.monotonic() < until and thread.is_alive():
                    cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
                    if cursor.fetchone()[0]:
                        break
                    time.sleep(0.02)  # before it looks again
            mine()

    noted("mine", holding)
    thread.join()
    return sorted(told)
