"""Structured logs: one event a line, with the request id, for people or as JSON for a collector."""

import logging.config
from typing import Any

import structlog

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def logging_config(*, level: str, form: str) -> dict[str, Any]:
    renderer: Any = structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": _SHARED,
        "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.format_exc_info, renderer],
    }
    in_full = level.upper() if form == "json" or level == "debug" else "WARNING"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"structured": formatter},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
        "loggers": {
            "django": {"handlers": [], "level": level.upper(), "propagate": True},
            "django.server": {"handlers": [], "propagate": True},
            "uvicorn": {"handlers": [], "level": "WARNING", "propagate": True},
            "celery": {"handlers": [], "level": "WARNING", "propagate": True},
            "opentelemetry": {"handlers": [], "level": "CRITICAL", "propagate": True},
            # Every step of every job, and which process is up: for a collector, and for people who ask for all there is.
            "scheduler.story": {"handlers": [], "level": in_full, "propagate": True},
            "gpufleet.celery": {"handlers": [], "level": in_full, "propagate": True},
        },
    }


def configure(config: dict[str, Any]) -> None:
    logging.config.dictConfig(config)
    structlog.configure(
        processors=[*_SHARED, structlog.processors.StackInfoRenderer(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
