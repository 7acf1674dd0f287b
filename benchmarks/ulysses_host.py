"""How much two (or more) CPU ranks gain over one on a small causal DiT, with our exchange and with gloo's all-to-all.

    python -m benchmarks.ulysses_host [--ranks 2] [--forwards 60] [--rounds 3]

Every rank is a process with one thread. Transports are measured in alternating rounds; the table shows the median forward
of the slowest rank. Below it: one exchange alone, back to back, from Python.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup

LAYERS, WIDTH, HEADS, DIM, MLP = 8, 256, 4, 64, 1024
TOKENS, KEY_FRAMES = 64, 15
MAX_BYTES = 16 << 20

Scatter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Sequence[torch.Tensor]]
Gather = Callable[[torch.Tensor], torch.Tensor]


class Dit:
    """The arithmetic of a block-causal DiT on one rank's tokens; random weights, a full window of keys and values."""

    def __init__(self, num_ranks: int) -> None:
        torch.manual_seed(0)
        self.tokens, self.heads = TOKENS // num_ranks, HEADS // num_ranks
        sizes = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (MLP, WIDTH), (WIDTH, MLP))
        self.layers = [[torch.randn(size) / size[1] ** 0.5 for size in sizes] for _ in range(LAYERS)]
        self.modulation = torch.randn(LAYERS, 6, WIDTH) * 0.1
        self.window = torch.randn(LAYERS, 2, 1, self.heads, KEY_FRAMES * TOKENS, DIM)
        self.latents = torch.randn(1, TOKENS, WIDTH)

    def forward(self, x: torch.Tensor, scatter: Scatter, gather: Gather) -> torch.Tensor:
        """One forward of ``x`` [1, tokens, width]."""
        for (qkv, proj, up, down), shift, window in zip(self.layers, self.modulation, self.window, strict=True):
            h = F.layer_norm(x, (WIDTH,)) * (1 + shift[0]) + shift[1]
            q, k, v = scatter(*F.linear(h, qkv).view(1, self.tokens, 3, HEADS, DIM).unbind(2))
            window[0, :, :, -TOKENS:] = k.transpose(1, 2)
            window[1, :, :, -TOKENS:] = v.transpose(1, 2)
            attended = F.scaled_dot_product_attention(q.transpose(1, 2), window[0], window[1])
            x = x + shift[2] * F.linear(gather(attended.transpose(1, 2)).reshape(1, self.tokens, WIDTH), proj)
            h = F.layer_norm(x, (WIDTH,)) * (1 + shift[3]) + shift[4]
            x = x + shift[5] * F.linear(F.gelu(F.linear(h, up), approximate="tanh"), down)
        return x


def gloo_scatter(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Sequence[torch.Tensor]:
    """Q, K and V in one all-to-all, permuted before and after."""
    ranks, tokens = dist.get_world_size(), q.shape[1]
    sent = torch.stack((q, k, v)).view(3, 1, tokens, ranks, HEADS // ranks, DIM).permute(3, 0, 1, 2, 4, 5).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received.permute(1, 2, 0, 3, 4, 5).reshape(3, 1, tokens * ranks, HEADS // ranks, DIM).unbind(0)


def gloo_gather(x: torch.Tensor) -> torch.Tensor:
    """The way back."""
    ranks, heads = dist.get_world_size(), x.shape[2]
    tokens = x.shape[1] // ranks
    sent = x.reshape(1, ranks, tokens, heads, DIM).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received.permute(1, 2, 0, 3, 4).reshape(1, tokens, HEADS, DIM)


def seconds_per_call(call: Callable[[], object], count: int) -> list[float]:
    """Each call's time, after a short warm-up."""
    for _ in range(5):
        call()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times


def run_rank(args: argparse.Namespace) -> None:
    """A rank: measures in rounds, prints one JSON line."""
    torch.set_num_threads(1)
    group = RankGroup.from_fds(rank=args.rank, num_ranks=args.ranks, fds=args.fds) if args.ranks > 1 else None
    dit = Dit(args.ranks)
    shard = dit.latents[:, args.rank * dit.tokens : (args.rank + 1) * dit.tokens]
    times: dict[str, list[float]] = {"host": [], "gloo": []}
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        ours = stack.enter_context(UlyssesCommunicator(group, max_bytes=MAX_BYTES, timeout_s=30))
        ways: dict[str, tuple[Scatter, Gather]] = {"host": (ours.scatter_qkv, ours.gather_heads)}
        if args.ranks > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group("gloo", init_method=f"file://{args.store}", rank=args.rank, world_size=args.ranks)
            ways["gloo"] = (gloo_scatter, gloo_gather)
            reference = dit.forward(shard, *ways["gloo"])
            if not torch.equal(reference, dit.forward(shard, *ways["host"])):
                raise SystemExit("host and gloo differ")
        for _ in range(args.rounds):
            for name, (scatter, gather) in ways.items():
                times[name] += seconds_per_call(functools.partial(dit.forward, shard, scatter, gather), args.forwards)
        x = torch.randn(1, dit.tokens, HEADS, DIM)
        y = ours.scatter_heads(x)
        for name, call in {
            "scatter_heads": lambda: ours.scatter_heads(x),
            "scatter_heads, tagged": lambda: ours.scatter_heads(x, tag="x"),
            "gather_heads": lambda: ours.gather_heads(y),
            "scatter_qkv": lambda: ours.scatter_qkv(x, x, x),
        }.items():
            times[name] = seconds_per_call(call, 3000)
        if args.ranks > 1:
            dist.destroy_process_group()
    sys.stdout.write(json.dumps({name: statistics.median(spent) for name, spent in times.items() if spent}) + "\n")


def measure(num_ranks: int, forwards: int, rounds: int) -> dict[str, float]:
    """Median seconds per name, of the slowest rank."""
    descriptors = GroupDescriptors.create(num_ranks)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.ulysses_host", "--ranks", str(num_ranks)]
        command += ["--forwards", str(forwards), "--rounds", str(rounds), "--store", f"{folder}/store"]
        command += ["--fds", *map(str, descriptors.fds)]
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], pass_fds=descriptors.fds, stdout=subprocess.PIPE, text=True)
            for rank in range(num_ranks)
        ]
        descriptors.close()
        medians = [json.loads(rank.communicate()[0]) for rank in ranks]
    return {name: max(median[name] for median in medians) for name in medians[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, choices=(1, 2, 4))
    parser.add_argument("--forwards", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fds", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        run_rank(args)
        return
    alone, together = measure(1, args.forwards, args.rounds), measure(args.ranks, args.forwards, args.rounds)
    print(f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, 1 thread a rank")
    print(f"DiT: {LAYERS} layers, width {WIDTH}, {HEADS} x {DIM}, {TOKENS} tokens, {KEY_FRAMES} frames of keys, fp32")
    print(f"{'forward':28}{'ms':>8}{'speed-up':>10}")
    print(f"{'1 rank':28}{alone['host'] * 1e3:8.2f}{1:10.2f}")
    for name in ("host", "gloo"):
        print(f"{f'{args.ranks} ranks, {name}':28}{together[name] * 1e3:8.2f}{alone['host'] / together[name]:10.2f}")
    print(f"{'one exchange':28}{'us':>8}")
    for name in together:
        if name not in ("host", "gloo"):
            print(f"{name:28}{together[name] * 1e6:8.1f}")


if __name__ == "__main__":
    main()
