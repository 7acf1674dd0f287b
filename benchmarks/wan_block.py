"""What the exchange costs a block of a large video model: Wan 14B, split over the GPUs of this host.

    python -m benchmarks.wan_block

Hidden 5120, 40 heads of 128, feed-forward 13824, a chunk of 4 latents (6240 tokens of all ranks) on a memory of 18 latents, a
prompt of 512 words; bf16, weights drawn at random. The exposed exchange is the time of a block less the time of the same block
without one: with local copies of as many bytes in its place ("copied"), or with one compiled kernel that norms, turns and lays
out, and nothing else ("placed"). All take turns, sample by sample, and differences are medians of those within a turn. "alone"
is the time of the same exchanges with nothing beside them. Two ways to order a block:

- plain: one projection of Q, K and V, the fused call ("apart": a compiled norm and turn, then a scatter), attention, a gather.
- overlapped: K and V first, on their way by the copy engine while Q is projected; Q and the attention's results in two parts of
  heads, the second part's way under the first part's attention, the first part's way back under the second's.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_ranks import Rank, enter_rank, recorded, start_ranks
from benchmarks.wan_block_weights import (
    CHUNK,
    DIM,
    EARLY,
    HEADS,
    HIDDEN,
    Block,
    Compiled,
    Inputs,
    attend,
    by_heads,
    reference,
)
from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.fused_transform import QkNorm, QkRope

CALLS_A_GRAPH = 4
SAMPLES = 40


class Mover(Protocol):
    """Between tokens and heads: [1, s, H, D] to [1, S, h, D] and back. ``far`` runs beside the block's own stream."""

    def fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]: ...

    def scatter(self, x: torch.Tensor, tag: str, *, far: bool) -> torch.Tensor: ...

    def gather(self, x: torch.Tensor, tag: str, *, far: bool) -> torch.Tensor: ...


class Exchanged:
    """By our communicators: kernels on the block's stream, the copy engine beside it."""

    def __init__(self, near: UlyssesCommunicator, far: UlyssesCommunicator, inputs: Inputs) -> None:
        self._near, self._far = near, far
        self._norm = QkNorm.of(inputs.q_weight, inputs.k_weight, eps=1e-6, span="row")
        self._rope = QkRope(inputs.phases)

    def fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._near.fused_qk_norm_rope_scatter(q, k, v, norm=self._norm, rope=self._rope)

    def scatter(self, x: torch.Tensor, tag: str, *, far: bool) -> torch.Tensor:
        return (self._far if far else self._near).scatter_heads(x, tag=tag)

    def gather(self, x: torch.Tensor, tag: str, *, far: bool) -> torch.Tensor:
        return (self._far if far else self._near).gather_heads(x, tag=tag)


class Apart(Exchanged):
    """A compiled norm and turn, then a scatter."""

    def __init__(self, near: UlyssesCommunicator, far: UlyssesCommunicator, compiled: Compiled, inputs: Inputs) -> None:
        super().__init__(near, far, inputs)
        self._compiled, self._inputs = compiled, inputs

    def fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k = self._compiled.norm_turn(q, k, self._inputs)
        return self._near.scatter_qkv(q, k, v, tag="apart")


class Copied:
    """As many bytes from and to memory, all of it local."""

    def __init__(self, compiled: Compiled, inputs: Inputs, num_ranks: int) -> None:
        self._compiled, self._inputs, self._ranks = compiled, inputs, num_ranks

    def fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k = self._compiled.norm_turn(q, k, self._inputs)
        return tuple(self.scatter(x, "", far=False) for x in (q, k, v))

    def scatter(self, x: torch.Tensor, tag: str, *, far: bool) -> torch.Tensor:
        tokens, heads = x.shape[1], x.shape[2] // self._ranks
        return x.view(tokens, self._ranks, heads, DIM).transpose(0, 1).reshape(1, -1, heads, DIM)

    def gather(self, x: torch.Tensor, tag: str, *, far: bool) -> torch.Tensor:
        tokens, heads = x.shape[1] // self._ranks, x.shape[2]
        return x.view(self._ranks, tokens, heads, DIM).transpose(0, 1).reshape(1, tokens, -1, DIM)


class Placed(Copied):
    """One compiled kernel for Q, K and V."""

    def fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._compiled.norm_turn_place(q, k, v, self._inputs, self._ranks)


class Runner:
    """One rank's block, in both orders, over either mover."""

    def __init__(self, rank: Rank, block: Block, inputs: Inputs, compiled: Compiled) -> None:
        self._rank, self._block, self._inputs, self._compiled = rank, block, inputs, compiled
        own_heads = HEADS // rank.num_ranks
        self._keys, self._values = (torch.split(x, own_heads, 2)[rank.rank].clone() for x in (inputs.keys, inputs.values))
        self._early = EARLY // rank.num_ranks
        with torch.cuda.device(rank.device):
            self._beside: torch.cuda.Stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        # The output projection's columns in the order in which heads come back: the first part of all ranks, then the second.
        columns = block.out.view(HIDDEN, rank.num_ranks, own_heads, DIM)
        self._out_early = columns[:, :, : self._early].reshape(HIDDEN, -1).contiguous()
        self._out_late = columns[:, :, self._early :].reshape(HIDDEN, -1).contiguous()

    def plain(self, mover: Mover) -> torch.Tensor:
        """[1, s, hidden] → the same."""
        x = self._compiled.modulated(self._inputs.x, self._block, 0)
        q, k, v = (by_heads(part) for part in F.linear(x, self._block.qkv).chunk(3, -1))
        q, k, v = mover.fused(q, k, v)
        self._remember(k, v)
        seen = mover.gather(self._attend(q, slice(None)), "o", far=False)
        return self._rest(F.linear(seen.flatten(2), self._block.out))

    def overlapped(self, mover: Mover) -> torch.Tensor:
        """[1, s, hidden] → the same."""
        beside, main = self._beside, torch.cuda.current_stream()
        x = self._compiled.modulated(self._inputs.x, self._block, 0)
        k, v = (by_heads(part) for part in F.linear(x, self._block.qkv[HIDDEN:]).chunk(2, -1))
        k_turned = self._compiled.norm_turn_keys(k, self._inputs)
        beside.wait_stream(main)
        with torch.cuda.stream(beside):
            self._remember(mover.scatter(k_turned, "k", far=True), mover.scatter(v, "v", far=True))
        q = by_heads(F.linear(x, self._block.qkv[:HIDDEN]))
        q_early, q_late = self._compiled.norm_turn_queries(q, self._inputs, self._rank.num_ranks)
        beside.wait_stream(main)
        with torch.cuda.stream(beside):
            queries_late = mover.scatter(q_late, "q late", far=True)
            arrived = beside.record_event()
        queries_early = mover.scatter(q_early, "q early", far=False)
        main.wait_event(self._memory_is_written)
        seen_early = self._attend(queries_early, slice(0, self._early))
        beside.wait_stream(main)
        with torch.cuda.stream(beside):
            back_early = mover.gather(seen_early, "o early", far=True)
            early_is_back = beside.record_event()
        main.wait_event(arrived)
        seen_late = self._attend(queries_late, slice(self._early, None))
        beside.wait_stream(main)
        with torch.cuda.stream(beside):
            back_late = mover.gather(seen_late, "o late", far=True)
        main.wait_event(early_is_back)
        out = F.linear(back_early.flatten(2), self._out_early)
        main.wait_stream(beside)
        out = torch.addmm(out[0], back_late[0].flatten(1), self._out_late.t())[None]
        return self._rest(out)

    def moves(self, mover: Mover, name: str) -> Callable[[], None]:
        """The exchanges of a block with nothing beside them: one fused call and one gather."""
        x = self._inputs.x
        qkv = F.linear(x, self._block.qkv)

        def call() -> None:
            q, k, v = (by_heads(part) for part in qkv.chunk(3, -1))
            q, _, _ = mover.fused(q, k, v)
            mover.gather(q, name, far=False)

        return call

    def _remember(self, k: torch.Tensor, v: torch.Tensor) -> None:
        self._keys[:, -CHUNK:] = k
        self._values[:, -CHUNK:] = v
        self._memory_is_written = torch.cuda.current_stream().record_event()

    def _attend(self, q: torch.Tensor, heads: slice) -> torch.Tensor:
        return attend(q, self._keys[:, :, heads], self._values[:, :, heads])

    def _rest(self, seen: torch.Tensor) -> torch.Tensor:
        return self._compiled.rest(self._inputs.x, seen, self._block, self._inputs)


def taking_turns(rank: Rank, ways: Sequence[Callable[[], object]], calls: int) -> list[list[float]]:
    """µs a call of each way, by sample, of the slower rank; one sample of each way after the other."""
    times = torch.zeros(len(ways), SAMPLES)
    for sample in range(SAMPLES):
        for index, way in enumerate(ways):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            dist.barrier()
            start.record()
            way()
            end.record()
            torch.cuda.synchronize()
            times[index, sample] = start.elapsed_time(end) / calls * 1e3
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    rows: list[list[float]] = times.tolist()
    return rows


def run(rank: Rank) -> None:
    """Both orders: equal to a block on one device, then timed."""
    torch.manual_seed(0)
    block, whole = Block.draw(rank.device), Inputs.draw(rank.device)
    inputs, compiled = whole.share(rank.rank, rank.num_ranks), Compiled()
    runner = Runner(rank, block, inputs, compiled)
    with rank.open(1 << 30) as near, rank.open(1 << 30, backend="copy_engine") as far:
        exchanged, copied = Exchanged(near, far, inputs), Copied(compiled, inputs, rank.num_ranks)
        wanted = reference(block, whole).chunk(rank.num_ranks, 1)[rank.rank]
        for name, order in (("plain", runner.plain), ("overlapped", runner.overlapped)):
            apart = (order(exchanged) - wanted).float().norm() / wanted.float().norm()
            rank.say(f"{name}: {float(apart):.1e} of the block's norm away from one device's result")
        alone = rank.graph_us(runner.moves(exchanged, "o"))
        rank.say(f"exchange alone, in a graph: {alone} us")
        apart, placed = Apart(near, far, compiled, inputs), Placed(compiled, inputs, rank.num_ranks)
        ways: dict[str, Callable[[], object]] = {
            "plain exchanged": partial(runner.plain, exchanged),
            "plain apart": partial(runner.plain, apart),
            "plain copied": partial(runner.plain, copied),
            "plain placed": partial(runner.plain, placed),
            "overlapped exchanged": partial(runner.overlapped, exchanged),
            "overlapped copied": partial(runner.overlapped, copied),
        }
        _tell(rank, "eager", dict(zip(ways, taking_turns(rank, list(ways.values()), 1), strict=True)), alone)
        graphs = [recorded(way, CALLS_A_GRAPH) for way in ways.values()]
        _tell(rank, "graph", dict(zip(ways, taking_turns(rank, graphs, CALLS_A_GRAPH), strict=True)), alone)
        near.check()
        far.check()


def _tell(rank: Rank, how: str, times: Mapping[str, Sequence[float]], alone: float) -> None:
    """Block times, and what is exposed against each way without an exchange."""
    rank.say(f"{how}: " + ", ".join(f"{name} {statistics.median(row):.0f}" for name, row in times.items()) + " us")
    for name, without in (
        ("plain exchanged", "plain copied"),
        ("plain exchanged", "plain placed"),
        ("overlapped exchanged", "overlapped copied"),
        ("overlapped exchanged", "plain placed"),
    ):
        exposed = statistics.median(with_it - bare for with_it, bare in zip(times[name], times[without], strict=True))
        rank.say(f"  {name} less {without}: {exposed:+.0f} us ({exposed / alone:+.0%} of alone)")


def main() -> int:
    """The parent without arguments; a rank with its description."""
    if len(sys.argv) == 1:
        print(f"torch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}", flush=True)
        return start_ranks("benchmarks.wan_block", 2)
    with (
        enter_rank(sys.argv[1]) as rank,
        sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True),
    ):
        run(rank)
    return 0


if __name__ == "__main__":
    sys.exit(main())
