"""Children that share their fate: ready when all are, lost when one is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ithaka.configs.schema import SupervisorSection
from ithaka.server.child_process import ChildFailure, ChildProcess, ChildSpec
from ithaka.workers.contract import Report


class ChildFailedError(Exception):
    """A child failed before the group was ready."""

    def __init__(self, failure: ChildFailure) -> None:
        super().__init__(f"{failure.child} {failure.message}")
        self.failure = failure


class ChildGroup:
    """One start of the children in ``specs``; a group that was lost is not started again, a new one is made."""

    def __init__(
        self, specs: Sequence[ChildSpec], limits: SupervisorSection, on_report: Callable[[ChildProcess, Report], None]
    ) -> None:
        self._ready_reports: dict[str, Report] = {}
        self._decided = asyncio.Event()
        self._first_failure: asyncio.Future[ChildFailure] = asyncio.get_running_loop().create_future()
        self.children = tuple(
            ChildProcess(spec, limits, on_ready=self._on_ready, on_report=on_report, on_failed=self._on_failed)
            for spec in specs
        )

    async def start(self) -> tuple[Report, ...]:
        """Each child's ready report, in order. Raises ChildFailedError when one fails first; the others are killed then."""
        try:
            for child in self.children:
                await child.spawn()
        except OSError as error:
            raise ChildFailedError(ChildFailure(self.children[0].name, "not_spawned", f"can't be started: {error}")) from error
        finally:
            for child in self.children:
                child.drop_fds()
        await self._decided.wait()
        if self._first_failure.done():
            raise ChildFailedError(self._first_failure.result())
        return tuple(self._ready_reports[child.name] for child in self.children)

    async def lost(self) -> ChildFailure:
        """Waits for the first failure. By then every child was sent SIGKILL."""
        return await asyncio.shield(self._first_failure)

    def kill(self) -> None:
        """SIGKILL to all, now. Idempotent."""
        for child in self.children:
            child.kill()

    async def reap(self) -> None:
        """Kill what lives, and wait until all are gone."""
        self.kill()
        for child in self.children:
            await child.wait()

    async def stop(self, *, deadline_s: float) -> None:
        """All of them down the ladder, side by side (see ``ChildProcess.stop``)."""
        await asyncio.gather(*(child.stop(deadline_s=deadline_s) for child in self.children))

    def _on_ready(self, child: ChildProcess, report: Report) -> None:
        self._ready_reports[child.name] = report
        if len(self._ready_reports) == len(self.children):
            self._decided.set()

    def _on_failed(self, _child: ChildProcess, failure: ChildFailure) -> None:
        if not self._first_failure.done():
            self._first_failure.set_result(failure)
        self._decided.set()
        self.kill()
