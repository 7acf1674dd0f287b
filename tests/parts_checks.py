"""Calls that move parts, or write where the caller wants it, written for one rank: any backend must pass them, bit by bit.

All ranks draw the same whole tensor from the same seed, so each knows what it must receive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.plan import Direction, balanced_splits

Splits = tuple[int, ...]
POISON = 0xA5


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cpu") -> torch.Tensor:
    """Small whole numbers, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    settle(torch.device(device))
    return torch.randint(-100, 100, shape, generator=generator).to(dtype).to(device)


def settle(device: torch.device) -> None:
    """Wait for this rank's own work. Where ranks share a GPU they share its queues for copies from and to the host: such a copy
    must not stand in one behind a kernel that waits for a rank whose own copy stands behind it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def equal(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Bit by bit."""
    settle(got.device)
    return torch.equal(got, wanted)


def holds(truth: torch.Tensor) -> bool:
    """Of every element."""
    settle(truth.device)
    return bool(truth.all())


def part(whole: torch.Tensor, splits: Splits, rank: int, dim: int) -> torch.Tensor:
    """A rank's share."""
    return torch.split(whole, list(splits), dim)[rank]


def where(communicator: UlyssesCommunicator, device: torch.device | str | None) -> torch.device | str:
    """Where the tensors live; an emulated device's live on the CPU."""
    return communicator.device if device is None else device


def check_head_chunks(communicator: UlyssesCommunicator, device: torch.device | str | None = None) -> None:
    """Every share in chunks, there and back, with fewer key heads and with uneven shares."""
    rank, ranks, at = communicator.rank, communicator.num_ranks, where(communicator, device)
    seq = tuple(5 + number % 2 for number in range(ranks))
    for heads, kv_heads, shares in (
        (4 * ranks, 2 * ranks, None),
        (4 * ranks + 2, 2 * ranks + 1, (*((4,) * (ranks - 1)), 6)),
    ):
        splits = shares or balanced_splits(heads, ranks)
        kv_splits = tuple(share // 2 for share in splits)
        q, k, v = (draw(seed, 2, sum(seq), count, 16, device=at) for seed, count in enumerate((heads, kv_heads, kv_heads)))
        mine = [part(x, seq, rank, 1) for x in (q, k, v)]
        wanted = [part(x, own, rank, 2) for x, own in ((q, splits), (k, kv_splits), (v, kv_splits))]
        ordinary = torch.full((2, seq[rank], heads, 16), -7, dtype=torch.bfloat16, device=at)
        allocated = communicator.allocate(ordinary.shape, torch.bfloat16).fill_(-7)
        for offset in (0, 2):
            got = communicator.scatter_qkv_head_chunk(
                *mine, head_offset=offset, head_count=2, seq_splits=seq, head_splits=shares
            )
            assert equal(got[0], wanted[0][:, :, offset : offset + 2])
            for each, whole in zip(got[1:], wanted[1:], strict=True):
                assert equal(each, whole[:, :, offset // 2 : offset // 2 + 1])
            for out in (ordinary, allocated):
                returned = communicator.gather_head_chunk(
                    got[0].clone(), head_offset=offset, head_count=2, out=out, seq_splits=seq, head_splits=shares
                )
                assert returned is out
            del got
        starts = [sum(splits[:number]) for number in range(ranks)]
        moved = [head for start in starts for head in range(start, start + 4)]
        kept = [head for head in range(heads) if head not in moved]
        settle(ordinary.device)
        for out in (ordinary, allocated):
            assert equal(out[:, :, moved], mine[0][:, :, moved])
            assert holds(out[:, :, kept] == -7)
        single = communicator.scatter_qkv_head_chunk(*mine, head_offset=1, head_count=1, seq_splits=seq, head_splits=shares)
        assert equal(single[0], wanted[0][:, :, 1:2])
        assert equal(single[1], wanted[1][:, :, 0:1])  # the key head that it shares
        for offset, count, needle in ((1, 2, "cut a group"), (8, 2, "not there on every rank"), (-2, 2, "not there")):
            with pytest.raises(UlyssesInputError, match=needle):
                communicator.scatter_qkv_head_chunk(
                    *mine, head_offset=offset, head_count=count, seq_splits=seq, head_splits=shares
                )
        communicator.check()


def check_chunks(communicator: UlyssesCommunicator, device: torch.device | str | None = None) -> None:
    """All-to-all of equal chunks of any shape and dtype."""
    rank, ranks, at = communicator.rank, communicator.num_ranks, where(communicator, device)
    for seed, (shape, dtype) in enumerate(
        (((3, 4), torch.int8), ((64,), torch.float32), ((), torch.int64), ((8, 1), torch.bool))
    ):
        table = draw(seed, ranks, ranks, *shape, device=at).to(dtype)
        for tag in (None, "chunks"):
            got = communicator.exchange_chunks(table[rank], tag=tag)
            assert equal(got, table[:, rank])
        out = torch.zeros_like(table[rank])
        assert communicator.exchange_chunks(table[rank], out=out) is out
        assert equal(out, table[:, rank])
    for bad in (torch.zeros(ranks + 1, 2, device=at), torch.zeros((), device=at), torch.zeros(ranks, 0, device=at)):
        with pytest.raises(UlyssesInputError) as caught:
            communicator.exchange_chunks(bad)
        assert caught.value.code is UlyssesErrorCode.BAD_SHAPE
    communicator.check()


def check_replicated_rows(communicator: UlyssesCommunicator, device: torch.device | str | None = None) -> None:
    """A prompt's rows behind the picture's: there with each rank's heads, and back with all."""
    rank, ranks, at = communicator.rank, communicator.num_ranks, where(communicator, device)
    skewed = (2, balanced_splits(3 * ranks + 1, ranks), balanced_splits(2 * ranks + 1, ranks), 1)
    for batch, seq, heads, rows in ((1, (4,) * ranks, (2,) * ranks, 3), skewed):
        splits: dict[str, Any] = {"seq_splits": seq, "head_splits": heads, "replicated": rows}
        whole, prompt = draw(1, batch, sum(seq), sum(heads), 16, device=at), draw(2, batch, rows, sum(heads), 16, device=at)
        x = torch.cat((part(whole, seq, rank, 1), prompt), 1)
        y = part(torch.cat((whole, prompt), 1), heads, rank, 2)
        out, back = torch.empty_like(y.contiguous()), torch.empty_like(x)
        landed, landed_back = (communicator.allocate(like.shape, like.dtype) for like in (y, x))
        for turn in range(4):
            for tag in (None, "rows"):
                assert equal(communicator.scatter_heads(x + turn, tag=tag, **splits), y + turn)
                assert equal(communicator.gather_heads(y + turn, tag=tag, **splits), x + turn)
            for into, into_back in ((out, back), (landed, landed_back)):
                communicator.scatter_heads(x - turn, out=into, **splits)
                communicator.gather_heads(y - turn, out=into_back, **splits)
                assert equal(into, y - turn)
                assert equal(into_back, x - turn)
        received = communicator.scatter_qkv(x, x + 1, x + 2, **splits)
        assert all(equal(got, y + number) for number, got in enumerate(received))
        for turn in range(4):
            parts = [x + turn, x - turn]
            for number, each in enumerate(parts):
                communicator.scatter_heads_async(each, f"later {number}", **splits)
            later = communicator.wait(("later 1", "later 0"))
            assert equal(later[0], y - turn)
            assert equal(later[1], y + turn)
        del received, later
    with pytest.raises(UlyssesInputError, match="replicated"):
        communicator.scatter_heads(x, replicated=x.shape[1])
    communicator.check()


def check_shared_key_heads(communicator: UlyssesCommunicator, device: torch.device | str | None = None) -> None:
    """Fewer key heads than ranks: neighbours hold the same one."""
    rank, ranks, at = communicator.rank, communicator.num_ranks, where(communicator, device)
    for kv_heads in {1, ranks // 2 if ranks % 2 == 0 else 1}:
        q = draw(1, 1, 3 * ranks, 2 * ranks, 8, device=at)
        k, v = (draw(seed, 1, 3 * ranks, kv_heads, 8, device=at) for seed in (2, 3))
        got = communicator.scatter_qkv(*(x.chunk(ranks, 1)[rank] for x in (q, k, v)), tag=f"shared {kv_heads}")
        own = rank * kv_heads // ranks
        for received, wanted in zip(
            got, (q.chunk(ranks, 2)[rank], k[:, :, own : own + 1], v[:, :, own : own + 1]), strict=True
        ):
            assert equal(received, wanted)
        del got


def check_ring(
    communicator: UlyssesCommunicator,
    delay: Callable[[int], None],
    device: torch.device | str | None = None,
    turns: int = 24,
) -> None:
    """Keys and values written straight into rings [layers, batch, heads, tokens, dim], place after place, read late."""
    rank, ranks, at = communicator.rank, communicator.num_ranks, where(communicator, device)
    tokens, even, uneven = 2 * ranks, (2,) * ranks, balanced_splits(2 * ranks + 1, ranks)
    # With a single place every call writes what the one before wrote, and a slow reader may still be reading.
    for batch, heads, layers, places in ((1, uneven, 2, 3), (1, even, 1, 1), (1, uneven, 1, 1), (2, even, 1, 1)):
        shape = (layers, batch, heads[rank], places * tokens, 16)
        rings = [communicator.allocate(shape, torch.bfloat16).fill_(0) for _ in range(2)]
        expected = [torch.zeros(shape, dtype=torch.bfloat16, device=at) for _ in range(2)]
        wrong = torch.zeros((), dtype=torch.int64, device=at)
        for turn in range(turns):
            layer, place = turn % layers, turn // layers % places
            rows = slice(place * tokens, (place + 1) * tokens)
            wholes = [draw(2 * turn + number, batch, tokens, sum(heads), 16, device=at) for number in range(2)]
            xs = [whole.chunk(ranks, 1)[rank] for whole in wholes]
            outs = [ring[layer, :, :, rows].transpose(1, 2) for ring in rings]
            communicator.exchange_into(Direction.SCATTER, xs, outs, head_splits=heads)
            for ring, whole in zip(expected, wholes, strict=True):
                ring[layer, :, :, rows] = part(whole, heads, rank, 2).transpose(1, 2)
            delay(turn)  # a slow reader: a fast peer must not write its next chunk yet
            for ring, whole in zip(rings, expected, strict=True):
                wrong += (ring[layer] != whole[layer]).sum()
                ring[layer, :, :, rows] = whole[layer, :, :, rows]
            if turn % 3 == 0:  # other calls between
                x = wholes[0].chunk(ranks, 1)[rank]
                got = communicator.scatter_heads(x, tag="between", head_splits=heads)
                wrong += (got != part(wholes[0], heads, rank, 2)).sum()
                del got
        assert holds(wrong == 0)
        communicator.check()


def check_allocation(communicator: UlyssesCommunicator) -> None:
    """Memory runs out with a message, on all ranks alike."""
    first = communicator.allocate((4, 3), torch.float32)
    second = communicator.allocate_output(Direction.SCATTER, (1, 2, communicator.num_ranks, 8), torch.int8)
    assert (first.shape, second.shape) == ((4, 3), (1, 2 * communicator.num_ranks, 1, 8))
    first.fill_(1)
    second.fill_(2)
    assert holds(first == 1)


CHECKS = (check_head_chunks, check_chunks, check_replicated_rows, check_shared_key_heads)
