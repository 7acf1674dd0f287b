"""A tenant's loop over scripted groups: which failures are retried, and that no fault of the tenant ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ithaka.configs.schema import SupervisorSection
from ithaka.server import upkeep as upkeep_module
from ithaka.server.child_group import ChildFailedError
from ithaka.server.child_process import ChildFailure, ChildProcess, ChildSpec
from ithaka.server.upkeep import Upkeep
from ithaka.workers.contract import MODEL_LOAD_FAILED, EncodeReady, Report

LIMITS = SupervisorSection(restart_backoff_s=0.001, restart_backoff_max_s=0.001, max_failed_starts=3)
DEADLINE_S = 10.0


def failure(code: str) -> ChildFailure:
    return ChildFailure("m/0", code, "because")


class ScriptedGroup:
    """Its start follows the next step of the script: a code is a failed start, None one that comes up and is lost."""

    script: Sequence[str | Exception | None] = ()
    num_started = 0
    children: tuple[ChildProcess, ...] = ()

    def __init__(self, *_: Any) -> None:
        cls = type(self)
        self._step = cls.script[cls.num_started] if cls.num_started < len(cls.script) else "spent"
        cls.num_started += 1

    async def start(self) -> tuple[Report, ...]:
        if isinstance(self._step, Exception):
            raise self._step
        if self._step is not None:
            raise ChildFailedError(failure(self._step))
        return (EncodeReady(),)

    async def lost(self) -> ChildFailure:
        return failure("exited")

    async def reap(self) -> None:
        pass

    async def stop(self, *, deadline_s: float) -> None:
        pass


class Tenant:
    name = "m"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.faults: dict[str, Exception] = {}
        self.gave_up = asyncio.Event()

    def specs(self) -> tuple[ChildSpec, ...]:
        self._note("specs")
        return ()

    def on_report(self, child: ChildProcess, report: Report) -> None: ...

    def on_up(self, children: tuple[ChildProcess, ...], reports: tuple[Report, ...]) -> None:
        self._note("up")

    async def on_down(self, lost: ChildFailure) -> None:
        self._note(f"down {lost.code}", "down")

    def on_failed_start(self, failed: ChildFailure, *, gave_up: bool) -> None:
        if gave_up:
            self.gave_up.set()
        self._note(f"failed {failed.code}", "failed")

    def _note(self, text: str, call: str = "") -> None:
        self.calls.append(text)
        fault = self.faults.pop(call or text, None)
        if fault is not None:
            raise fault


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    async def run(script: Sequence[str | Exception | None], **faults: Exception) -> list[str]:
        tenant = Tenant()
        tenant.faults = faults
        group = type("Scripted", (ScriptedGroup,), {"script": tuple(script)})
        monkeypatch.setattr(upkeep_module, "ChildGroup", group)
        upkeep = Upkeep(tenant, LIMITS)
        upkeep.start()
        async with asyncio.timeout(DEADLINE_S):
            await tenant.gave_up.wait()
        await upkeep.stop(deadline_s=0)
        return [call for call in tenant.calls if call != "specs"]

    return run


async def test_what_can_not_heal_is_given_up_at_once(run_script: Callable[..., Any]) -> None:
    assert await run_script([MODEL_LOAD_FAILED, None]) == ["failed model_load_failed"]


async def test_a_crash_while_loading_is_tried_again(run_script: Callable[..., Any]) -> None:
    assert await run_script(["exited", "start_failed", None, *["exited"] * 3]) == [
        *["failed exited", "failed start_failed", "up", "down exited"],
        *["failed exited"] * 3,
    ]


async def test_settings_that_were_good_once_are_tried_again(run_script: Callable[..., Any]) -> None:
    calls = await run_script([None, *[MODEL_LOAD_FAILED] * 3])
    assert calls == ["up", "down exited", *["failed model_load_failed"] * 3]


@pytest.mark.parametrize("fault", [OSError("no descriptor"), ValueError("a bug")])
@pytest.mark.parametrize("call", ["up", "down"])
async def test_a_fault_of_the_tenant_costs_a_life(call: str, fault: Exception, run_script: Callable[..., Any]) -> None:
    calls = await run_script([None, None, *["exited"] * 3], **{call: fault})
    first = "down not_attached" if call == "up" else "down exited"
    assert calls == ["up", first, "up", "down exited", *["failed exited"] * 3]


async def test_a_fault_in_a_start_is_a_failed_start(run_script: Callable[..., Any]) -> None:
    again = ["up", "down exited", *["failed exited"] * 3]
    script = [None, *["exited"] * 3]
    assert await run_script(script, specs=ValueError("a bug")) == ["failed not_spawned", *again]
    assert await run_script([ValueError("a bug"), *script]) == ["failed not_spawned", *again]
    assert await run_script(["exited", *script], failed=ValueError("a bug")) == ["failed exited", *again]
