"""One daemon with numbered pictures for all tests of this folder; its log is shown beside a failure."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.e2e.cuttable_proxy import CuttableProxy, cuttable_proxy
from tests.e2e.live_daemon import CONFIG as LIVE_CONFIG
from tests.e2e.running_daemon import RunningDaemon, running_daemon

CONFIG = """
models:
  - {name: numbers, family: synthetic, device: cpu, max_sessions: 4, options: {width: 192, height: 128, fps: 30}}
  - name: chunks
    family: synthetic
    device: cpu
    max_sessions: 4
    options: {width: 320, height: 192, fps: 24, chunk_frames: 4}
  - name: broken
    family: synthetic
    device: cpu
    options: {width: 192, height: 128, fps: 30, fail_at_chunk: 20}
sessions: {detach_timeout_s: 5, drain_timeout_s: 5}
log: {level: info}
"""
LOG_LINES = 60


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), CONFIG) as running:
        yield running


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """With keys, for live sessions too."""
    with running_daemon(tmp_path_factory.mktemp("live"), LIVE_CONFIG) as running:
        yield running


@pytest.fixture
def proxy(daemon: RunningDaemon) -> Iterator[CuttableProxy]:
    with cuttable_proxy(daemon.port) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    daemon = getattr(item, "funcargs", {}).get("daemon")
    if report.failed and isinstance(daemon, RunningDaemon):
        lines = daemon.log.read_text().splitlines()
        report.sections.append(("daemon's log", "\n".join(lines[-LOG_LINES:])))
    return report
