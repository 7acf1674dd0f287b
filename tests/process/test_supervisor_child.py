"""One child's life against real processes that misbehave in every way the supervisor has a word for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest
from tests.process.engine_run import children, descriptors

from ithaka.configs.schema import SupervisorSection
from ithaka.server.child_group import ChildFailedError, ChildGroup
from ithaka.server.child_process import ChildFailure, ChildProcess, ChildSpec
from ithaka.workers.contract import ConfigureEncode, Report, RequestKeyFrame, SessionStarted

LIMITS = SupervisorSection(ready_timeout_s=0.7, heartbeat_interval_s=0.05, heartbeat_timeout_s=0.5, stop_timeout_s=0.3)
PATIENT = LIMITS.model_copy(update={"ready_timeout_s": 30})
CONFIGURE = ConfigureEncode("odd", 20, "veryfast", 2.0, 0.1)


@pytest.fixture(autouse=True)
def _importable_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def _spec(fault: str, name: str = "odd") -> ChildSpec:
    return ChildSpec(name, "tests.process.odd_child", CONFIGURE, faults=(fault,))


class Watched:
    """A group of one odd child, and what was heard of it."""

    def __init__(self, fault: str, limits: SupervisorSection = PATIENT) -> None:
        self.reports: list[Report] = []
        self.spoke = asyncio.Event()
        self.group = ChildGroup([_spec(fault)], limits, self._hear)

    def _hear(self, _child: ChildProcess, report: Report) -> None:
        self.reports.append(report)
        self.spoke.set()


@pytest.mark.parametrize(
    ("fault", "limits", "code", "message"),
    [
        ("exits", PATIENT, "exited", "exited with status 3"),
        ("mute", LIMITS, "not_ready", "not ready after 0.7 s"),
        ("garbage", PATIENT, "protocol", "not a message"),
        ("wrong_way", PATIENT, "protocol", "Shutdown, which is no report"),
    ],
)
async def test_a_child_that_does_not_become_ready(fault: str, limits: SupervisorSection, code: str, message: str) -> None:
    before = descriptors()
    watched = Watched(fault, limits)
    with pytest.raises(ChildFailedError, match=message) as failed:
        await watched.group.start()
    assert failed.value.failure.code == code
    await watched.group.reap()
    assert children("odd_child") == []
    assert descriptors() == before


@pytest.mark.parametrize(("fault", "code"), [("speaks_and_exits", "exited"), ("closes", "silent")])
async def test_a_ready_child_that_goes_away(fault: str, code: str) -> None:
    watched = Watched(fault)
    await watched.group.start()
    failure = await watched.group.lost()
    assert failure.code == code
    await watched.group.reap()
    # Its last words were heard before its end was told.
    assert watched.reports == ([SessionStarted("s")] if fault == "speaks_and_exits" else [])
    assert children("odd_child") == []


async def test_a_child_that_reads_nothing_is_given_up_before_memory_is() -> None:
    watched = Watched("deaf")
    await watched.group.start()
    (child,) = watched.group.children
    await watched.spoke.wait()
    for _ in range(100_000):
        child.send(RequestKeyFrame("s"))
        if not child.is_ready:
            break
    assert (await watched.group.lost()).code == "congested"
    await watched.group.reap()
    assert children("odd_child") == []


@pytest.mark.parametrize("fault", ["deaf", "stubborn"])
async def test_a_child_that_ignores_shutdown_goes_down_the_ladder(fault: str) -> None:
    before = descriptors()
    watched = Watched(fault)
    await watched.group.start()
    await watched.spoke.wait()
    process = psutil.Process(watched.group.children[0].pid)
    await watched.group.stop(deadline_s=asyncio.get_running_loop().time() + 30)
    assert not process.is_running()
    await watched.group.stop(deadline_s=0)
    watched.group.kill()
    assert descriptors() == before


async def test_one_child_s_failure_is_the_group_s() -> None:
    group = ChildGroup([_spec("deaf", "a"), _spec("exits", "b")], PATIENT, lambda _child, _report: None)
    with pytest.raises(ChildFailedError) as failed:
        await group.start()
    assert failed.value.failure == ChildFailure("b", "exited", "exited with status 3; its log says why")
    await group.reap()
    assert children("odd_child") == []


async def test_a_child_that_can_t_be_spawned_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    before = descriptors()
    fd = os.memfd_create("rides-along")
    group = ChildGroup(
        [ChildSpec("a", "x", CONFIGURE), ChildSpec("b", "x", CONFIGURE, fds=(fd,))], PATIENT, lambda _child, _report: None
    )
    with pytest.raises(ChildFailedError, match="nowhere") as failed:
        await group.start()
    assert failed.value.failure.code == "not_spawned"
    await group.reap()
    await group.stop(deadline_s=0)
    assert descriptors() == before
