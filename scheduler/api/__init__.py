"""The scheduler's part of the HTTP API."""

from ninja import Router

from scheduler.api import (
    arrays,
    bulk,
    checkpoints,
    connecting,
    energy,
    events,
    evictions,
    fitting,
    hardware,
    imports,
    jobs,
    log_stream,
    logs,
    loop,
    notices,
    power,
    queue,
    replacing,
    replicas,
    reservations,
    saved_views,
    schedules,
    sooner,
    sweeps,
    template_speeds,
    templates,
    traces,
    usage,
    webhooks,
    what_ifs,
    why,
)

router = Router()
router.add_router("", hardware.router)
router.add_router("", imports.router)
router.add_router("", connecting.router)
router.add_router("", checkpoints.router)
router.add_router("", bulk.router)  # before single jobs, whose addresses hold any name
router.add_router("", arrays.router)
router.add_router("", saved_views.router)
router.add_router("", queue.router)
router.add_router("", jobs.router)
router.add_router("", replacing.router)
router.add_router("", replicas.router)
router.add_router("", why.router)
router.add_router("", sooner.router)
router.add_router("", usage.router)
router.add_router("", events.router)
router.add_router("", evictions.router)
router.add_router("", schedules.router)
router.add_router("", reservations.router)
router.add_router("", logs.router)
router.add_router("", log_stream.router)
router.add_router("", fitting.router)
router.add_router("", template_speeds.router)
router.add_router("", templates.router)
router.add_router("", loop.router)
router.add_router("", webhooks.router)
router.add_router("", what_ifs.router)
router.add_router("", power.router)
router.add_router("", energy.router)
router.add_router("", traces.router)
router.add_router("", sweeps.router)
router.add_router("", notices.router)
