"""Thirty sessions one after another leave the daemon as it was."""

from pathlib import Path

import pytest
from benchmarks.daemon import running_daemon
from benchmarks.soak import CONFIG, soak


@pytest.mark.timeout(300)
async def test_thirty_sessions_leave_nothing_behind_and_lose_nothing(tmp_path: Path) -> None:
    config = tmp_path / "soak.yaml"
    config.write_text(CONFIG)
    with running_daemon(config) as daemon:
        result = await soak(daemon, cycles=30, frames=24)
    assert result.complaints() == []
    assert result.frames == 33 * 24
