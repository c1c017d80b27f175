"""The command line of those who send jobs: it talks to a console's API and needs neither Django nor a database.

How commands end (docs/operate/commands.md): 0 done; 1 the job that was waited for failed or was cancelled; 2 the command line or a file can't be
read; 3 not signed in, or not allowed; 4 there is no such job; 5 the console refused the values, or somebody was faster; 6 the console can't be
reached.
"""

DONE, JOB_FAILED, USAGE, NOT_ALLOWED, NOT_THERE, REFUSED, AWAY = range(7)


class ClientError(Exception):
    """What went wrong, in words for the person at the terminal, and how the program ends."""

    def __init__(self, status: int, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.details = details
