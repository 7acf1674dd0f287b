"""Two decodes of the same latents: told, matched in any order, differences counted and logged."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from ithaka.server import frame_comparison
from ithaka.server.engine_client import FramesCompared
from ithaka.server.frame_comparison import FrameComparison
from ithaka.workers.child_socket import ChildSocket
from ithaka.workers.families.stages import Chunk
from ithaka.workers.stages.contract import FramesDigested, LatentsHeader
from ithaka.workers.stages.digests import DigestSink


def digests(*values: int) -> tuple[bytes, ...]:
    return tuple(bytes([value]) * 32 for value in values)


def test_frames_are_told_by_their_bytes() -> None:
    server, control = ChildSocket.pair()
    sink = DigestSink(control)
    frames = torch.arange(36, dtype=torch.uint8).reshape(3, 3, 4)
    sink.publish(Chunk((frames,), 3), LatentsHeader("s", 2, 7, 3, 0))
    received = server.receive()
    assert received is not None
    expected = tuple(hashlib.sha256(np.arange(12 * i, 12 * i + 12, dtype=np.uint8).tobytes()).digest() for i in range(3))
    assert received[0] == FramesDigested("s", 7, expected)
    assert sink.wake_fds() == () and sink.room_frames() > 1 << 20
    server.close()
    control.close()


@given(st.permutations([(stage, seq) for stage in ("m/decode", "m/verify") for seq in (1, 3, 5)]))
def test_the_order_in_which_stages_tell_does_not_matter(order: list[tuple[str, int]]) -> None:
    seen: list[FramesCompared] = []
    comparison = FrameComparison("m", seen.append)
    for stage, first_seq in order:
        comparison.add(stage, FramesDigested("s", first_seq, digests(first_seq, 0)))
    assert seen == [FramesCompared("m", "s", 2, 0)] * 3


@pytest.mark.parametrize(("theirs", "counts"), [(digests(1, 9), (1, 1)), (digests(8, 9), (0, 2)), (digests(1), (1, 1))])
def test_a_difference_is_counted_and_logged(theirs: tuple[bytes, ...], counts: tuple[int, int]) -> None:
    seen: list[FramesCompared] = []
    comparison = FrameComparison("m", seen.append)
    comparison.add("m/decode", FramesDigested("s", 5, digests(1, 2)))
    with capture_logs() as logs:
        comparison.add("m/verify", FramesDigested("s", 5, theirs))
    assert seen == [FramesCompared("m", "s", *counts)]
    assert [(log["event"], log["session"], log["first_seq"], log["different"]) for log in logs] == [
        ("frames.differ", "s", 5, counts[1])
    ]


def test_chunks_that_one_stage_leaves_out_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_comparison, "_MAX_WAITING", 3)
    seen: list[FramesCompared] = []
    comparison = FrameComparison("m", seen.append)
    for first_seq in range(10):
        comparison.add("m/decode", FramesDigested("s", first_seq, digests(0)))
    for first_seq in (8, 9, 2):
        comparison.add("m/verify", FramesDigested("s", first_seq, digests(0)))
    assert len(seen) == 2
