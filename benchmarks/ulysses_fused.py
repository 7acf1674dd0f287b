"""The fused norm + positions + scatter against compiled norm + positions and our scatter, between the GPUs of this host.

    python -m benchmarks.ulysses_fused

bf16, head dim 128, norm over all heads and interleaved positions as in Wan; Q, K and V are parts of one projection. Times are
µs of the slower rank, in a CUDA graph (eager). A call ends when the consumer may read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from tests.fused_cases import Case, draw, furthest

from benchmarks.gpu_ranks import Call, Rank, enter_rank, start_ranks
from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration, Launch, Row
from ithaka.comm_ext.ulysses.fused_transform import QkNorm, QkRope, QkTransform
from ithaka.comm_ext.ulysses.plan import balanced_splits

SHAPES = ((4680, 12), (4680, 40), (6240, 40))  # tokens and heads of all ranks
BLOCKS = (16, 32, 64, 100, 132)
HEAD_DIM = 128
MAX_BYTES = 3 << 30


def norm_turn(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, angles: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is compiled: [1, s, H, D] twice, ``angles`` [1, s, 1, D / 2, 2]."""
    cos, sin = angles[..., 0], angles[..., 1]
    turned = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        wide = x.float().flatten(2)
        normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).view(x.shape)
        real, imaginary = normed.view(*x.shape[:-1], -1, 2).unbind(-1)
        pairs = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)
        turned.append(pairs.flatten(-2).to(x.dtype))
    return turned[0], turned[1]


class Bench:
    """One shape on one rank."""

    def __init__(self, rank: Rank, tokens: int, heads: int) -> None:
        splits = balanced_splits(heads, rank.num_ranks)
        even = (tokens // rank.num_ranks,) * rank.num_ranks
        case = Case(even, splits, splits, HEAD_DIM, torch.bfloat16, "row", "interleaved", 1, "parts")
        self._drawn = draw(case, rank.rank, rank.device, tokens)
        self._qkv, self._transform = self._drawn.qkv, self._drawn.transform
        self._compiled: Callable[..., tuple[torch.Tensor, torch.Tensor]] = torch.compile(norm_turn, dynamic=False)

    def fused(self, communicator: UlyssesCommunicator) -> Call:
        norm, rope = self._transform.norm, self._transform.rope
        q, k, v = self._qkv
        return partial(communicator.fused_qk_norm_rope_scatter, q, k, v, norm=norm, rope=rope, tag="fused")

    def compiled(self) -> tuple[torch.Tensor, torch.Tensor]:
        norm, rope = _parts(self._transform)
        angles = torch.view_as_real(rope.phases)[:, :, None]
        q, k, _ = self._qkv
        return self._compiled(q, k, norm.q_weight, norm.k_weight, angles, norm.eps)

    def apart(self, communicator: UlyssesCommunicator) -> Call:
        return lambda: communicator.scatter_qkv(*self.compiled(), self._qkv[2], tag="apart")

    def values_first(self, communicator: UlyssesCommunicator) -> Call:
        def call() -> object:
            communicator.scatter_heads_async(self._qkv[2], "v")
            for x, tag in zip(self.compiled(), "qk", strict=True):
                communicator.scatter_heads_async(x, tag)
            return communicator.wait(("q", "k", "v"))

        return call

    def scatter(self, communicator: UlyssesCommunicator) -> Call:
        return partial(communicator.scatter_qkv, *self._qkv, tag="scatter")

    def check(self, call: Call) -> str:
        """How far the results are from the definition."""
        received = call()
        assert isinstance(received, (tuple, list))
        units = max(furthest(got, wanted) for got, wanted in zip(received, self._drawn.wanted, strict=True))
        return f"{units} units apart"


def _parts(transform: QkTransform) -> tuple[QkNorm, QkRope]:
    assert transform.norm is not None and transform.rope is not None
    return transform.norm, transform.rope


def run(rank: Rank) -> None:
    """All shapes: ours and the compiled way, then the fused kernel with other numbers of blocks."""
    ours = rank.open(MAX_BYTES)
    benches = {shape: Bench(rank, *shape) for shape in SHAPES}
    for (tokens, heads), bench in benches.items():
        ways = {
            "fused": bench.fused(ours),
            "compiled norm and positions, scatter": bench.apart(ours),
            "the same, values first": bench.values_first(ours),
            "compiled alone": bench.compiled,
            "scatter alone": bench.scatter(ours),
        }
        rank.say(
            f"{tokens}x{heads}: fused {bench.check(ways['fused'])}, compiled {bench.check(ways['the same, values first'])}"
        )
        times = {name: rank.graph_us(call) for name, call in ways.items()}
        rank.say("  " + ", ".join(f"{name} {times[name]} ({rank.eager_us(call)})" for name, call in ways.items()))
        best = min(time for name, time in times.items() if ("scatter" in name and "alone" not in name) or "first" in name)
        rank.say(f"  fused is {best / times['fused']:.2f} times as fast as the better of the two others")
    ours.close()
    for blocks in BLOCKS:
        with rank.open(MAX_BYTES, calibration=Calibration("trial", (Row(2, 1 << 60, Launch(blocks, 0, 0.0)),))) as trial:
            times = {f"{tokens}x{heads}": rank.graph_us(bench.fused(trial)) for (tokens, heads), bench in benches.items()}
        rank.say(f"fused with {blocks} blocks: {times}")


def main() -> int:
    """The parent without arguments; a rank with its description."""
    if len(sys.argv) == 1:
        print(f"torch {torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}", flush=True)
        return start_ranks("benchmarks.ulysses_fused", 1 + len(BLOCKS))
    with enter_rank(sys.argv[1]) as rank:
        run(rank)
    return 0


if __name__ == "__main__":
    sys.exit(main())
