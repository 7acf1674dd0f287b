"""Structured logs to stderr, one event a line, for the server and every child alike."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ithaka.configs.schema import LogSection


def configure_logs(section: LogSection, **context: str | int) -> None:
    """Send structlog and the standard library's logging through one formatter.

    ``context`` (say ``process="labyrinth/1"``) stands in every line of this process.
    """

    def add_context(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        # Not contextvars: those would be missing in lines from other threads.
        event.update(context)
        return event

    shared: list[Processor] = [
        add_context,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if section.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=section.level.upper(), force=True)
    for chatty in ("uvicorn.access", "websockets", "httpx", "asyncio", "aioice", "aiortc"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
