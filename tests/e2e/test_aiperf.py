"""AIPerf as it is released, in its own environment, plays sessions of the daemon by the plugin."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live_daemon import CONFIG, KEY
from tests.e2e.running_daemon import RunningDaemon, running_daemon

ROOT = Path(__file__).parents[2]
AIPERF = ROOT / ".venv-aiperf/bin/aiperf"
DEADLINE_S = 110
NUM_FRAMES = 24


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    assert AIPERF.exists(), "run: make .venv-aiperf/.ready"
    with running_daemon(tmp_path_factory.mktemp("aiperf"), CONFIG) as running:
        yield running


def profile(daemon: RunningDaemon, folder: Path, *, delivery: str, model: str = "numbers") -> subprocess.CompletedProcess[str]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"text": "rain"}\n')
    wishes = {"max_frames": NUM_FRAMES, "seed": 7, "delivery": delivery}
    command: list[str | Path] = [
        *(AIPERF, "profile", "--model", model, "--endpoint-type", "ithaka", "--transport", "ithaka", "--streaming"),
        *("--url", daemon.url, "--api-key", KEY, "--request-count", "3", "--concurrency", "2"),
        *("--input-file", prompts, "--custom-dataset-type", "single_turn"),
        *(part for name, value in wishes.items() for part in ("--extra-inputs", f"{name}:{value}")),
        *("--export-level", "raw", "--ui", "none", "--no-gpu-telemetry", "--output-artifact-dir", folder / "out"),
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def chunks_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(response["packets"][0]["value"]) for response in record["responses"]]


@pytest.mark.parametrize("delivery", ["lossless", "live"])
def test_each_frame_of_each_session_is_a_chunk_with_its_number(daemon: RunningDaemon, tmp_path: Path, delivery: str) -> None:
    run = profile(daemon, tmp_path, delivery=delivery)
    assert run.returncode == 0, run.stdout + run.stderr
    figures = json.loads((tmp_path / "out/profile_export_aiperf.json").read_text())
    assert figures["request_count"]["avg"] == 3
    # A session is as long as its frames at 16 a second.
    assert figures["request_latency"]["min"] >= 1000 * (NUM_FRAMES - 2) / 16
    records = [json.loads(line) for line in (tmp_path / "out/profile_export_raw.jsonl").read_text().splitlines()]
    assert len(records) == 3 and all(record["status"] == 200 for record in records)
    for record in records:
        *frames, verdict = chunks_of(record)
        times_ns = [response["perf_ns"] for response in record["responses"]]
        assert all(earlier <= later for earlier, later in pairwise([record["start_perf_ns"], *times_ns]))
        seqs = [frame["seq"] for frame in frames]
        assert verdict["last_seq"] == NUM_FRAMES and verdict["decoded_count"] == len(seqs)
        assert sorted({*seqs, *verdict["lost"]}) == list(range(1, NUM_FRAMES + 1)) and not {*seqs} & {*verdict["lost"]}
        if delivery == "lossless":
            assert seqs == list(range(1, NUM_FRAMES + 1)) and verdict["delivered"] is True


def test_what_the_daemon_refuses_is_an_error_with_its_code(daemon: RunningDaemon, tmp_path: Path) -> None:
    run = profile(daemon, tmp_path, delivery="lossless", model="nothing")
    assert run.returncode != 0
    records = [json.loads(line) for line in (tmp_path / "out/profile_export.jsonl").read_text().splitlines()]
    assert [(record["error"]["type"], record["error"]["code"]) for record in records] == [("model_unknown", 404)] * 3
