"""How good foreseen starts were, and what is learnt from it."""

from datetime import datetime, timedelta

from scheduler.foresight import HORIZONS, WINDOW, Foresight, Outcome, Ranged, Score, score
from scheduler.models import Job, Prediction

LOOKED_BACK = timedelta(days=7)
MOST = WINDOW * (len(HORIZONS) + 1)
MILLISECOND = timedelta(milliseconds=1)
COLUMNS = ("at", "foreseen", "earliest", "expected", "latest", "started_at")


def foresight_now() -> Foresight:
    """What the console's own history says about waits to come."""
    rows = Prediction.objects.filter(started_at__isnull=False).order_by("-started_at", "-id").values_list(*COLUMNS)[:MOST]
    return Foresight(
        Outcome((foreseen - at) // MILLISECOND, (started - at) // MILLISECOND, earliest <= started <= latest)
        for at, foreseen, earliest, _, latest, started in reversed(rows)
        if started is not None
    )


def predictions_score(*, now: datetime, most: int = MOST) -> Score | None:
    """How good the predictions were whose jobs started in the last days; None: there were none."""
    rows = Prediction.objects.filter(started_at__gte=now - LOOKED_BACK).order_by("-started_at", "-id").values_list(*COLUMNS)[:most]
    return score(
        [
            Ranged(*((moment - at) // MILLISECOND for moment in (earliest, expected, latest, started)))
            for at, _, earliest, expected, latest, started in rows
            if started is not None
        ]
    )


def prediction_of(job: Job) -> Prediction | None:
    """What it was told first; to be asked for a job that the reader may see."""
    return Prediction.objects.filter(job=job).first()
