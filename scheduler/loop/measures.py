"""Which counters and histograms there are. Names are those of /metrics; docs/operate/scheduler.md describes each."""

from dataclasses import dataclass

MILLISECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
WAITS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 7 * 86400.0)


@dataclass(frozen=True, slots=True)
class Counted:
    """How often something happened."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Timed:
    """How long something took: so many up to each bound, and the sum of all."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = MILLISECONDS


TICK = Timed("gpufleet_tick_seconds", "How long ticks took: looking at everything, deciding, writing down, telling the back-ends.")
PHASE = Timed("gpufleet_tick_phase_seconds", "How long each part of a tick took.", ("phase",))
# The parts of a tick in their order.
PHASES = ("observe", "timers", "promises", "snapshot", "plan", "apply", "dispatch", "record", "ahead")
PLANS = Counted("gpufleet_plans", "Plans by what became of them: carried_out, nothing (to do), or failed (nothing was written).", ("outcome",))
DECISIONS = Counted("gpufleet_plan_decisions", "Decisions that were written down.")
CONFLICTS = Counted("gpufleet_plan_conflicts", "Decisions that were dropped because a row had changed since the snapshot.")
WAITED = Timed("gpufleet_job_time_to_start_seconds", "From when a job could first have started to its first start.", ("class",), WAITS)
CALL = Timed("gpufleet_backend_call_seconds", "How long a back-end took to answer.", ("cluster", "call"))
CALL_FAULTS = Counted("gpufleet_backend_faults", "Calls that a back-end failed or refused.", ("cluster", "call"))
ORDERS = (*MILLISECONDS, *WAITS[2:5])
ORDER = Timed("gpufleet_backend_order_seconds", "From an order being due to the back-end having done it.", ("cluster", "kind"), ORDERS)
SENDS = (*MILLISECONDS, 10.0)
DELIVERIES = Counted("gpufleet_webhook_tries", "Tries to deliver to a webhook: delivered, failed (tried again later), given_up.", ("outcome",))
DELIVERY = Timed("gpufleet_webhook_try_seconds", "How long a try to deliver to a webhook took.", (), SENDS)
MAILS = Counted("gpufleet_notice_mails", "Mails with notices: sent, or failed (tried again later).", ("outcome",))
SOURCE_FAULTS = Counted("gpufleet_telemetry_faults", "Readings of a source of telemetry that failed or were given up.", ("source",))
ROUND_FAULTS = Counted("gpufleet_round_faults", "Rows of a round that failed and were passed over; the others were done.", ("round",))
SUBMISSIONS_LIMITED = Counted(
    "gpufleet_submissions_limited", "Submissions that a limit refused for a while: rate of a person, rate of a node, or waiting jobs.", ("limit",)
)

MEASURES = (
    *(TICK, PHASE, PLANS, DECISIONS, CONFLICTS, WAITED, CALL, CALL_FAULTS, ORDER, DELIVERIES, DELIVERY, MAILS, SOURCE_FAULTS, ROUND_FAULTS),
    SUBMISSIONS_LIMITED,
)

# The name under which the scheduler writes down, every few seconds, that it has finished a tick.
TICK_FINISHED = "tick finished"
