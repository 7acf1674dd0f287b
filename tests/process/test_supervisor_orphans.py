"""The server is killed: the kernel takes its children along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil

DRIVER = """
import asyncio, sys
from tests.process.engine_run import EngineRun, children, synthetic

async def serve():
    async with EngineRun(synthetic(ranks=2)) as run:
        await run.ready()
        run.begin("s1", window=4)
        await run.frames("s1", 4)
        print(*(process.pid for process in children()), flush=True)
        await asyncio.Event().wait()

asyncio.run(serve())
"""


def test_a_killed_server_leaves_no_process() -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        # What the log says comes before.
        pids = next(line for line in server.stdout if line[:1].isdigit() and "[" not in line).split()
        assert len(pids) == 3
        processes = [psutil.Process(int(pid)) for pid in pids]
        os.kill(server.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(processes, timeout=3)
        assert alive == []
