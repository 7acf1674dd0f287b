"""Keeps one group of children alive: start, serve, lose, clean up, back off, start again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Protocol

import structlog

from ithaka.configs.schema import SupervisorSection
from ithaka.server.backoff import Backoff
from ithaka.server.child_group import ChildFailedError, ChildGroup
from ithaka.server.child_process import ChildFailure, ChildProcess, ChildSpec
from ithaka.workers.contract import MODEL_LOAD_FAILED, Report

_REAP_TIMEOUT_S = 1.0

_log = structlog.get_logger()


class Tenant(Protocol):
    """What an upkeep serves. Called on the event loop."""

    name: str

    def specs(self) -> tuple[ChildSpec, ...]:
        """The children of one more start, with fresh descriptors. Raises OSError."""
        ...

    def on_report(self, child: ChildProcess, report: Report) -> None: ...

    def on_up(self, children: tuple[ChildProcess, ...], reports: tuple[Report, ...]) -> None:
        """All are ready; ``reports`` are their ready reports."""
        ...

    async def on_down(self, failure: ChildFailure) -> None:
        """They were up, and are dead or dying of SIGKILL. The next start waits for this to return."""
        ...

    def on_failed_start(self, failure: ChildFailure, *, gave_up: bool) -> None:
        """They did not come up. After ``gave_up`` there is no further start."""
        ...


class Upkeep:
    """One tenant's loop."""

    def __init__(self, tenant: Tenant, limits: SupervisorSection) -> None:
        self._tenant = tenant
        self._limits = limits
        self._group: ChildGroup | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"upkeep {self._tenant.name}")
        self._task.add_done_callback(self._ended)

    async def stop(self, *, deadline_s: float) -> None:
        """No further start; the children go down the ladder. Returns when all are gone. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._group is not None:
            await self._group.stop(deadline_s=deadline_s)

    def kill(self) -> None:
        """SIGKILL to the children, now, and no further start; ``stop`` still reaps."""
        if self._task is not None:
            self._task.cancel()
        if self._group is not None:
            self._group.kill()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("upkeep.failed", group=self._tenant.name, exc_info=error)

    async def _run(self) -> None:
        was_up = False
        backoff = Backoff(self._limits.restart_backoff_s, self._limits.restart_backoff_max_s, self._limits.max_failed_starts)
        while True:
            try:
                reports = await self._start()
            except ChildFailedError as error:
                backoff = backoff.failed()
                # What is wrong with the settings or the weights stays so; unless they were good once.
                gave_up = backoff.is_spent or (error.failure.code == MODEL_LOAD_FAILED and not was_up)
                self._log_failed_start(error.failure, backoff, gave_up=gave_up)
                with self._guarded("on_failed_start"):
                    self._tenant.on_failed_start(error.failure, gave_up=gave_up)
                if gave_up:
                    return
            else:
                was_up, backoff = True, backoff.succeeded()
                await self._serve(reports)
            await asyncio.sleep(backoff.delay_s)

    async def _start(self) -> tuple[Report, ...]:
        try:
            specs = self._tenant.specs()
            self._group = ChildGroup(specs, self._limits, self._tenant.on_report)
            return await self._group.start()
        except Exception as error:
            if self._group is not None:
                await self._group.reap()
            if isinstance(error, ChildFailedError):
                raise
            self._log_fault(error, "start")
            raise ChildFailedError(ChildFailure(self._tenant.name, "not_spawned", f"can't be started: {error}")) from error

    async def _serve(self, reports: tuple[Report, ...]) -> None:
        assert self._group is not None
        try:
            self._tenant.on_up(self._group.children, reports)
            failure = await self._group.lost()
        except Exception as error:
            self._log_fault(error, "on_up")
            failure = ChildFailure(self._tenant.name, "not_attached", f"can't be used: {error}")
        # A process that has a device's memory to free takes its time to die; sessions don't wait for that.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_TIMEOUT_S):
                await self._group.reap()
        _log.warning("group.lost", group=self._tenant.name, child=failure.child, reason=failure.message)
        with self._guarded("on_down"):
            await self._tenant.on_down(failure)
        await self._group.reap()

    def _log_failed_start(self, failure: ChildFailure, backoff: Backoff, *, gave_up: bool) -> None:
        """One line: what, why, and what happens next."""
        _log.log(
            logging.ERROR if gave_up else logging.WARNING,
            "group.start_failed",
            group=self._tenant.name,
            child=failure.child,
            code=failure.code,
            reason=failure.message,
            starts=backoff.num_failures,
            next="given up: mend it and start again" if gave_up else f"again in {backoff.delay_s:g} s",
        )

    @contextlib.contextmanager
    def _guarded(self, call: str) -> Iterator[None]:
        """A fault of the tenant keeps nobody from the next start."""
        try:
            yield
        except Exception as error:
            self._log_fault(error, call)

    def _log_fault(self, error: Exception, call: str) -> None:
        """An OSError is no fault: no descriptor or no memory was left."""
        if not isinstance(error, OSError):
            _log.error("upkeep.fault", group=self._tenant.name, call=call, exc_info=error)
