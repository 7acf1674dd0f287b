"""How much two (or more) CPU ranks gain over one on a small causal DiT, with our exchange and with gloo's all-to-all.

    python -m benchmarks.ulysses_host [--ranks 2] [--forwards 6] [--rounds 30] [--real-time]

Every rank is a process with one thread. Rounds of host, gloo and (without any exchange, on local copies) the bare arithmetic
of a share alternate; a round counts as its median forward on the slowest rank, and the table shows the quietest round and
the median round, because other work on the machine hits several ranks harder than one: with ``--real-time`` it has to wait
during a round, and gets the same time before the next. Below it: one exchange alone, back to back, from Python, likewise.
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
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup
from ithaka.workers.layers.packed_linear import PackedLinear, can_pack

LAYERS, WIDTH, HEADS, DIM, MLP = 8, 256, 4, 64, 1024
UP = 2  # index of the layer that GELU follows
TOKENS, KEY_FRAMES = 64, 1 + 15  # a frame sees itself and 15 before it
MAX_BYTES = 16 << 20

Scatter = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Sequence[torch.Tensor]]
Gather = Callable[[torch.Tensor], torch.Tensor]


def _layer(inputs: int, outputs: int, *, gelu: bool) -> nn.Module:
    linear = nn.Linear(inputs, outputs, bias=False)
    if can_pack(torch.device("cpu")):
        return PackedLinear(linear, gelu=gelu)
    return nn.Sequential(linear, nn.GELU(approximate="tanh")) if gelu else linear


class Dit:
    """The arithmetic of a block-causal DiT on one rank's tokens; random weights, a full window of keys and values."""

    def __init__(self, num_ranks: int) -> None:
        torch.manual_seed(0)
        self.tokens, self.heads = TOKENS // num_ranks, HEADS // num_ranks
        sizes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, MLP), (MLP, WIDTH))
        self.layers = [[_layer(*size, gelu=index == UP) for index, size in enumerate(sizes)] for _ in range(LAYERS)]
        self.modulation = [(torch.randn(6, WIDTH) * 0.1).unbind() for _ in range(LAYERS)]
        self.windows = torch.randn(LAYERS, 2, 1, self.heads, KEY_FRAMES * TOKENS, DIM)
        self.memory = [tuple((each, each[:, :, -TOKENS:].transpose(1, 2)) for each in pair) for pair in self.windows]
        """Of each layer keys and values: all, and the frame's own as the exchange brings them."""
        self.latents = torch.randn(1, TOKENS, WIDTH)

    def local_scatter(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Sequence[torch.Tensor]:
        """The shapes of an exchange without peers."""
        return [x.reshape(1, TOKENS, self.heads, DIM) for x in (q, k, v)]

    def local_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Likewise, back."""
        return x.reshape(1, self.tokens, HEADS, DIM)

    def forward(self, x: torch.Tensor, scatter: Scatter, gather: Gather) -> torch.Tensor:
        """One forward of ``x`` [1, tokens, width]."""
        for (qkv, proj, up, down), told, ((keys, own_keys), (values, own_values)) in zip(
            self.layers, self.modulation, self.memory, strict=True
        ):
            h = torch.addcmul(told[0], F.layer_norm(x, (WIDTH,)), told[1])
            q, k, v = scatter(*qkv(h).view(1, self.tokens, 3, HEADS, DIM).unbind(2))
            own_keys.copy_(k)
            own_values.copy_(v)
            attended = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values)
            x = torch.addcmul(x, proj(gather(attended.transpose(1, 2)).view(1, self.tokens, WIDTH)), told[2])
            h = torch.addcmul(told[3], F.layer_norm(x, (WIDTH,)), told[4])
            x = torch.addcmul(x, down(up(h)), told[5])
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


def median_seconds(call: Callable[[], object], count: int) -> float:
    """Of ``count`` calls, after two to warm up."""
    times = []
    for _ in range(count + 2):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


@contextlib.contextmanager
def undisturbed(wanted: bool) -> Iterator[None]:
    """At real-time priority, if wanted; needs the right to it."""
    began = time.perf_counter()
    os.sched_setscheduler(0, os.SCHED_RR if wanted else os.SCHED_OTHER, os.sched_param(int(wanted)))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if wanted:
        time.sleep(time.perf_counter() - began)


def run_rank(args: argparse.Namespace) -> None:
    """A rank: measures in rounds, prints one JSON line: per name the median seconds of each round."""
    torch.set_num_threads(1)
    group = RankGroup.from_fds(rank=args.rank, num_ranks=args.ranks, fds=args.fds) if args.ranks > 1 else None
    dit = Dit(args.ranks)
    shard = dit.latents[:, args.rank * dit.tokens : (args.rank + 1) * dit.tokens]
    rounds: dict[str, list[float]] = {}
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        ours = stack.enter_context(UlyssesCommunicator(group, max_bytes=MAX_BYTES, timeout_s=30))
        ways: dict[str, tuple[Scatter, Gather]] = {"host": (ours.scatter_qkv, ours.gather_heads)}
        if args.ranks > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group("gloo", init_method=f"file://{args.store}", rank=args.rank, world_size=args.ranks)
            ways["gloo"] = (gloo_scatter, gloo_gather)
            ways["bare"] = (dit.local_scatter, dit.local_gather)
            reference = dit.forward(shard, *ways["gloo"])
            if not torch.equal(reference, dit.forward(shard, *ways["host"])):
                raise SystemExit("host and gloo differ")
        for _ in range(args.rounds):
            for name, (scatter, gather) in ways.items():
                forward = functools.partial(dit.forward, shard, scatter, gather)
                with undisturbed(args.real_time and name != "gloo"):  # whose threads would have to wait, too
                    rounds.setdefault(name, []).append(median_seconds(forward, args.forwards))
        x = torch.randn(1, dit.tokens, HEADS, DIM)
        y = ours.scatter_heads(x)
        for name, call in {
            "scatter_heads": lambda: ours.scatter_heads(x),
            "scatter_heads, tagged": lambda: ours.scatter_heads(x, tag="x"),
            "gather_heads": lambda: ours.gather_heads(y),
            "scatter_qkv": lambda: ours.scatter_qkv(x, x, x),
        }.items():
            rounds[name] = []
            for _ in range(args.rounds):
                with undisturbed(args.real_time):
                    rounds[name].append(median_seconds(call, 400))
        if args.ranks > 1:
            dist.destroy_process_group()
    sys.stdout.write(json.dumps(rounds) + "\n")


def measure(num_ranks: int, options: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of each round per name, of the slowest rank."""
    descriptors = GroupDescriptors.create(num_ranks)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.ulysses_host", "--ranks", str(num_ranks)]
        command += [*options, "--store", f"{folder}/store", "--fds", *map(str, descriptors.fds)]
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], pass_fds=descriptors.fds, stdout=subprocess.PIPE, text=True)
            for rank in range(num_ranks)
        ]
        descriptors.close()
        reports = [json.loads(rank.communicate()[0]) for rank in ranks]
    return {name: [max(each) for each in zip(*(report[name] for report in reports), strict=True)] for name in reports[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, choices=(1, 2, 4))
    parser.add_argument("--forwards", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--real-time", action="store_true", help="other work on the machine waits during a round")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fds", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        run_rank(args)
        return
    options = ["--forwards", str(args.forwards), "--rounds", str(args.rounds), *(["--real-time"] if args.real_time else [])]
    alone, together = measure(1, options), measure(args.ranks, options)
    print(f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, 1 thread a rank")
    print(f"DiT: {LAYERS} layers, width {WIDTH}, {HEADS} x {DIM}, {TOKENS} tokens, {KEY_FRAMES} frames of keys, fp32")
    print(f"{'forward':28}{'quietest ms':>12}{'speed-up':>10}{'median ms':>12}{'speed-up':>10}")
    one = alone["host"]
    rows = {"1 rank": one, **{f"{args.ranks} ranks, {name}": together.pop(name) for name in ("host", "gloo", "bare")}}
    for name, spent in rows.items():
        quietest, median = min(spent), statistics.median(spent)
        gain, median_gain = min(one) / quietest, statistics.median(one) / median
        print(f"{name:28}{quietest * 1e3:12.2f}{gain:10.2f}{median * 1e3:12.2f}{median_gain:10.2f}")
    print(f"{'one exchange':28}{'quietest us':>12}{'':10}{'median us':>12}")
    for name, spent in together.items():
        print(f"{name:28}{min(spent) * 1e6:12.1f}{'':10}{statistics.median(spent) * 1e6:12.1f}")


if __name__ == "__main__":
    main()
