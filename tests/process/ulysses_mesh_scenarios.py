"""What ranks of a mesh do in the tests: attention by several kinds of parallelism at once, against plain attention."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import torch
from tests.process.ulysses_scenarios import RankContext, fault_of

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.errors import UlyssesPeerError
from ithaka.comm_ext.ulysses.mesh import Mesh

SEQ, HEADS, DIM = 16, 4, 8
WIDTH = HEADS * DIM
GUIDANCE = 3.0


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Plain, [B, S, H, D]."""
    scores = torch.einsum("bshd,bthd->bhst", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v)


def everybodys(communicator: UlyssesCommunicator, x: torch.Tensor) -> torch.Tensor:
    """[P, ...]: every rank's ``x``, by an all-to-all of equal chunks."""
    return communicator.exchange_chunks(x.expand(communicator.num_ranks, *x.shape).contiguous())


def ring_attention(ring: UlyssesCommunicator, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Over the blocks of all ranks of the ring, merged by their softmax sums."""
    total, weight = torch.zeros_like(q), torch.zeros(*q.shape[:3], 1, dtype=q.dtype)
    for block_k, block_v in zip(everybodys(ring, k), everybodys(ring, v), strict=True):
        scores = torch.einsum("bshd,bthd->bsht", q, block_k) / DIM**0.5
        numbers = scores.exp()  # small enough here to do without the running maximum
        total += torch.einsum("bsht,bthd->bshd", numbers, block_v)
        weight += numbers.sum(-1, keepdim=True)
    return total / weight


def ulysses_in_ring(context: RankContext, heads: UlyssesCommunicator, ring: UlyssesCommunicator) -> bool:
    """Each rank has a quarter of the tokens, its group a half, the ring all."""
    whole = [drawn(seed, 1, SEQ, HEADS, DIM) for seed in range(3)]
    mine = [x.chunk(context.num_ranks, 1)[context.rank] for x in whole]
    got = heads.gather_heads(ring_attention(ring, *heads.scatter_qkv(*mine)))
    return torch.allclose(got, attention(*whole).chunk(context.num_ranks, 1)[context.rank])


def ulysses_in_tp(context: RankContext, heads: UlyssesCommunicator, tp: UlyssesCommunicator) -> bool:
    """Each rank of the tp group projects half of the heads, and exchanges them with those that have the same half."""
    x, weights, project = drawn(1, 1, SEQ, WIDTH), drawn(2, 3, WIDTH, WIDTH) / WIDTH**0.5, drawn(3, WIDTH, WIDTH)
    wanted = attention(*((x @ weight).view(1, SEQ, HEADS, DIM) for weight in weights)).reshape(1, SEQ, WIDTH) @ project
    own = slice(tp.rank * WIDTH // 2, (tp.rank + 1) * WIDTH // 2)
    shard = x.chunk(heads.num_ranks, 1)[heads.rank]
    q, k, v = ((shard @ weight[:, own]).view(1, -1, HEADS // 2, DIM) for weight in weights)
    attended = heads.gather_heads(attention(*heads.scatter_qkv(q, k, v)))
    partial = attended.reshape(1, -1, WIDTH // 2) @ project[own]
    return torch.allclose(everybodys(tp, partial).sum(0), wanted.chunk(heads.num_ranks, 1)[heads.rank])


def ulysses_in_cfg(context: RankContext, heads: UlyssesCommunicator, cfg: UlyssesCommunicator) -> bool:
    """Each half of a guided step has a group of its own; they meet at the end."""
    halves = [[drawn(10 * which + seed, 1, SEQ, HEADS, DIM) for seed in range(3)] for which in range(2)]
    plain = [attention(*half) for half in halves]
    wanted = plain[0] + GUIDANCE * (plain[1] - plain[0])
    mine = [x.chunk(heads.num_ranks, 1)[heads.rank] for x in halves[cfg.rank]]
    without, conditioned = everybodys(cfg, heads.gather_heads(attention(*heads.scatter_qkv(*mine))))
    got = without + GUIDANCE * (conditioned - without)
    return torch.allclose(got, wanted.chunk(heads.num_ranks, 1)[heads.rank])


OUTER: dict[str, Callable[[RankContext, UlyssesCommunicator, UlyssesCommunicator], bool]] = {
    "ring": ulysses_in_ring,
    "tp": ulysses_in_tp,
    "cfg": ulysses_in_cfg,
}


def composed(context: RankContext) -> dict[str, Any]:
    """Ulysses inside of each other kind, several times over; the descriptors come group by group."""
    right = {}
    for name, play in OUTER.items():
        mesh = Mesh(**{name: 2, "ulysses": 2})
        with contextlib.ExitStack() as stack:
            inner, outer = (
                stack.enter_context(
                    UlyssesCommunicator(
                        mesh.seat(axis, context.rank, tuple(socket.recv_fds(context.control, 16, 2)[1])),
                        max_bytes=1 << 20,
                        timeout_s=30.0,
                    )
                )
                for axis in ("ulysses", name)
            )
            right[name] = all(play(context, inner, outer) for _ in range(5))
    return right


def compiled_parts(context: RankContext) -> dict[str, Any]:
    """Uneven shares, fewer key heads and replicated rows in one graph, against the same calls made eagerly."""
    seq, heads, rows = [3, 2], [4, 2], 2
    with context.open() as communicator:

        def block(x: torch.Tensor) -> torch.Tensor:
            q, k, v = x[:, :, :6], x[:, :, 6:9], x[:, :, 9:]
            q, k, v = communicator.scatter_qkv(q, k, v, seq_splits=seq, head_splits=heads, replicated=rows)
            k, v = (each.repeat_interleave(2, 2) for each in (k, v))
            mixed = q * k + v
            back = communicator.gather_heads(mixed, seq_splits=seq, head_splits=heads, replicated=rows)
            return back * 2

        graph = torch.compile(block, fullgraph=True, backend="aot_eager")
        equal = 0
        for seed in range(3):
            x = torch.cat((torch.split(drawn(seed, 1, sum(seq), 12, 8), seq, 1)[context.rank], drawn(9, 1, rows, 12, 8)), 1)
            expected = (x[:, :, :6] * x[:, :, 6:9].repeat_interleave(2, 2) + x[:, :, 9:].repeat_interleave(2, 2)) * 2
            equal += torch.equal(graph(x), expected) and torch.equal(block(x), expected)
        return {"equal": equal}


def compiled_chunks(context: RankContext) -> dict[str, Any]:
    """Heads in chunks, and rows that all ranks hold sent ahead, in one graph, against the same calls made eagerly."""
    seq, rows = [3, 2], 2
    with context.open() as communicator:

        def block(x: torch.Tensor) -> torch.Tensor:
            communicator.scatter_heads_async(x, "ahead", seq_splits=seq, replicated=rows)
            own = x[:, : seq[communicator.rank]]
            q, k, v = own[:, :, :8], own[:, :, 8:12], own[:, :, 12:]
            out = torch.zeros_like(q)
            for offset in (0, 2):
                chunk = communicator.scatter_qkv_head_chunk(q, k, v, head_offset=offset, head_count=2, seq_splits=seq)
                mixed = chunk[0] * chunk[1].repeat_interleave(2, 2) + chunk[2].repeat_interleave(2, 2)
                del chunk
                out = communicator.gather_head_chunk(mixed, head_offset=offset, head_count=2, out=out, seq_splits=seq)
            (ahead,) = communicator.wait("ahead")
            return torch.cat((out * 2, ahead[:, : own.shape[1], :8]), 2)

        graph = torch.compile(block, fullgraph=True, backend="aot_eager")
        equal = 0
        for seed in range(3):
            x = torch.cat((torch.split(drawn(seed, 1, sum(seq), 16, 8), seq, 1)[context.rank], drawn(9, 1, rows, 16, 8)), 1)
            own = x[:, : seq[context.rank]]
            wanted = (own[:, :, :8] * own[:, :, 8:12].repeat_interleave(2, 2) + own[:, :, 12:].repeat_interleave(2, 2)) * 2
            got = graph(x)
            equal += torch.equal(got, block(x)) and torch.equal(got[:, :, :8], wanted)
        return {"equal": equal}


def collective_loop(context: RankContext) -> dict[str, Any]:
    """Exchanges over gloo until the group breaks; rank 1 pauses after the third."""
    x = torch.ones(1, 2, 2 * context.num_ranks, 4)
    communicator = context.open(backend="gloo", timeout_s=context.options["timeout_s"])
    try:
        for call in range(1_000_000):
            if call == 3 and context.rank == 1:
                context.pause("between_calls")
            communicator.gather_heads(communicator.scatter_heads(x))
    except UlyssesPeerError as error:
        return fault_of(error)
    finally:
        communicator.close()
    return {}


SCENARIOS: dict[str, Callable[[RankContext], dict[str, Any]]] = {
    "composed": composed,
    "compiled_parts": compiled_parts,
    "compiled_chunks": compiled_chunks,
    "collective_loop": collective_loop,
}
