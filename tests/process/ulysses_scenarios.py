"""What the rank processes of the tests do. Each scenario runs on every rank and returns plain values."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.control_block import RankState
from ithaka.comm_ext.ulysses.errors import UlyssesPeerError
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.host import Copy, HostExchange, HostSite
from ithaka.comm_ext.ulysses.plan import Direction, balanced_splits
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

POISON = 0xEE


@dataclass(frozen=True, slots=True)
class RankContext:
    """A rank's place in a scenario."""

    rank: int
    num_ranks: int
    arena_fd: int
    verdict_fd: int
    control: socket.socket
    options: dict[str, Any]

    def open(self, **options: Any) -> UlyssesCommunicator:
        """The communicator of this rank's seat."""
        group = RankGroup(self.rank, self.num_ranks, self.arena_fd, self.verdict_fd)
        return UlyssesCommunicator(group, **{"max_bytes": 4 << 20, "timeout_s": 30.0, **options})

    def say(self, phase: str) -> None:
        """Tell the test where this rank is."""
        self.control.send(json.dumps({"reached": phase}).encode())

    def pause(self, phase: str) -> None:
        """Tell the test, and wait for its go."""
        self.say(phase)
        if self.control.recv(16) != b"go":
            os._exit(1)


# The test may hold a rank at these places: before or after the named method, in the call of the given number.
PHASES: dict[str, tuple[type, str, bool]] = {
    "before_send": (HostExchange, "send", False),
    "between_copies": (Copy, "run", True),
    "before_post": (Rendezvous, "post", False),
    "after_post": (Rendezvous, "post", True),
    "in_wait": (Rendezvous, "_sleep", False),
    "after_settle": (Rendezvous, "settle", True),
    "after_receive": (HostExchange, "receive", True),
    "before_join": (Rendezvous, "join", False),
    "joining": (Rendezvous, "_enter", True),
    "joined": (Rendezvous, "join", True),
    "before_close": (Rendezvous, "close", False),
    "closing": (Rendezvous, "_enter", True),
}


def hold_at(context: RankContext, phase: str, call: int) -> None:
    """Pause at ``phase`` once, in the ``call``-th exchange (counted by sends; 0 before the first)."""
    owner, method, after = PHASES[phase]
    original, sends, held = getattr(owner, method), HostExchange.send, [False]
    calls = [0]

    def counted(self: HostExchange, site: HostSite, tensors: Any) -> None:
        calls[0] += 1
        (patched if phase == "before_send" else sends)(self, site, tensors)

    def patched(*args: Any, **named: Any) -> Any:
        due = not held[0] and calls[0] == call and (phase != "closing" or args[1] is RankState.CLOSING)
        if due and not after:
            held[0] = True
            context.pause(phase)
        result = original(*args, **named)
        if due and after:
            held[0] = True
            context.pause(phase)
        return result

    setattr(owner, method, patched)
    setattr(HostExchange, "send", counted)  # noqa: B010 - mypy forbids assigning to a method


def say_when_waiting(context: RankContext) -> None:
    """Report, once, that this rank sleeps for a peer in an exchange."""
    original, said = Rendezvous._sleep, [False]

    def patched(self: Rendezvous, word: int, seen: int) -> float:
        if not said[0] and self.num_unsettled:
            said[0] = True
            context.say("waiting")
        return original(self, word, seen)

    setattr(Rendezvous, "_sleep", patched)  # noqa: B010


def poison_free_slots() -> None:
    """Before each send, spoil the slot that must be out of use: whoever wrote it too early or reads it too late, notices."""
    original = HostExchange.send

    def patched(self: HostExchange, site: HostSite, tensors: Any) -> None:
        slot = site.slots[(site.region.uses + 1) % site.region.num_slots]
        if not slot.is_lent():
            slot.lease[:] = bytes([POISON]) * len(slot.lease)
        original(self, site, tensors)

    setattr(HostExchange, "send", patched)  # noqa: B010


def whole_tensor(call: int, batch: int, seq: int, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """[B, S, H, D], the same on every rank, different in every call."""
    generator = torch.Generator().manual_seed(call)
    numbers = torch.randint(-100, 100, (batch, seq, heads, dim), generator=generator)
    return numbers.to(dtype)


def take(whole: torch.Tensor, splits: tuple[int, ...], rank: int, dim: int) -> torch.Tensor:
    return torch.split(whole, list(splits), dim=dim)[rank]


def fault_of(error: UlyssesPeerError) -> dict[str, Any]:
    return {"code": str(error.code), "rank": error.rank, "text": str(error)}


def exchange_loop(context: RankContext) -> dict[str, Any]:
    """Six different exchanges, checked; held where the test says. Reports the fault, and that it is sticky."""
    options = context.options
    for held in (*options.get("held_each", ()), options.get("held")):
        if held is not None and context.rank in held["ranks"]:
            hold_at(context, held["phase"], held["call"])
    if options.get("say_when_waiting"):
        say_when_waiting(context)
    ranks, rank = context.num_ranks, context.rank
    seq, heads = balanced_splits(3 * ranks + 1, ranks), balanced_splits(2 * ranks + 1, ranks)
    good, communicator = 0, None
    try:
        communicator = context.open(timeout_s=options.get("timeout_s", 30.0), join_timeout_s=options.get("join_s", 30.0))
        for call in range(2):
            whole = whole_tensor(call, 1, sum(seq), sum(heads), 8, torch.float32)
            x, y = take(whole, seq, rank, 1), take(whole, heads, rank, 2)
            splits: dict[str, Any] = {"seq_splits": seq, "head_splits": heads}
            good += torch.equal(communicator.scatter_heads(x, **splits), y)
            good += all(torch.equal(each, y) for each in communicator.scatter_qkv(x, x, x, **splits))
            good += torch.equal(communicator.gather_heads(y, **splits), x)
        communicator.close()
        return {"good": good}
    except UlyssesPeerError as error:
        result = {"good": good, **fault_of(error)}
    if communicator is not None:
        try:
            communicator.scatter_heads(x, seq_splits=seq, head_splits=heads)
        except UlyssesPeerError as error:
            result["again"] = fault_of(error) == {key: result[key] for key in ("code", "rank", "text")}
        communicator.close()
    return result


def random_calls(context: RankContext) -> dict[str, Any]:
    """Calls of random kind, shape, splits, dtype and lifetime, each compared with plain slices; free slots are poisoned."""
    poison_free_slots()
    ranks, rank, rng = context.num_ranks, context.rank, random.Random(context.options["seed"])
    dtypes = (torch.float32, torch.bfloat16, torch.int8)
    checked = 0
    shapes = [
        (
            rng.choice((1, 2)),
            tuple(rng.choice((1, 2, 7)) for _ in range(ranks)) if rng.random() < 0.5 else (rng.choice((3, 8)),) * ranks,
            tuple(rng.choice((1, 2, 3)) for _ in range(ranks)) if rng.random() < 0.5 else (2,) * ranks,
            rng.choice((1, 3, 16)),
            rng.choice(dtypes),
        )
        for _ in range(12)
    ]
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    with context.open() as communicator:
        for call in range(context.options["calls"]):
            batch, seq, heads, dim, dtype = rng.choice(shapes)
            whole = whole_tensor(call, batch, sum(seq), sum(heads), dim, dtype)
            x, y = take(whole, seq, rank, 1), take(whole, heads, rank, 2)
            splits: dict[str, Any] = {"seq_splits": seq, "head_splits": heads}
            kind = rng.choice(("scatter", "gather", "lease", "out", "qkv", "async"))
            if kind == "scatter":
                pairs = [(communicator.scatter_heads(x, **splits), y)]
            elif kind == "gather":
                pairs = [(communicator.gather_heads(y, **splits), x)]
            elif kind == "lease":
                pairs = [(communicator.gather_heads(y, tag="o", **splits), x)]
            elif kind == "out":
                out = communicator.allocate_output(Direction.SCATTER, x.shape, x.dtype, **splits)
                out.view(torch.uint8).fill_(POISON)
                pairs = [(communicator.scatter_heads(x, out=out, **splits), y)]
            elif kind == "qkv":
                received = communicator.scatter_qkv(x, x + 1, x - 1, **splits)
                pairs = list(zip(received, (y, y + 1, y - 1), strict=True))
            else:
                communicator.scatter_heads_async(x, "v", **splits)
                communicator.scatter_heads_async(x + 1, "q", **splits)
                between = communicator.scatter_heads(x - 1, **splits)
                q, v = communicator.wait(("q", "v"))
                pairs = [(v, y), (q, y + 1), (between, y - 1)]
            # The previous results must still be good after this call, leases included.
            if not all(torch.equal(got, expected) for got, expected in (*kept, *pairs)):
                return {"failed": f"call {call}, {kind}"}
            checked += 1
            kept = pairs
    return {"checked": checked}


def against_gloo(context: RankContext) -> dict[str, Any]:
    """Random values that only their rank knows, against all_gather and a slice by gloo."""
    import torch.distributed as dist

    rank, ranks, options = context.rank, context.num_ranks, context.options
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{options['store']}", rank=rank, world_size=ranks)
    equal = 0
    generator = torch.Generator().manual_seed(1000 + rank)

    def gathered(x: torch.Tensor, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        """Every rank's tensor: all_gather of rows padded to the longest, since gloo wants equal sizes."""
        longest = max(torch.Size(shape).numel() for shape in shapes)
        padded = torch.zeros(longest, dtype=x.dtype)
        padded[: x.numel()] = x.flatten()
        rows = [torch.empty_like(padded) for _ in range(ranks)]
        dist.all_gather(rows, padded)
        return [row[: torch.Size(shape).numel()].view(shape) for row, shape in zip(rows, shapes, strict=True)]

    with context.open() as communicator:
        for batch, seq_total, heads_total, dim in options["shapes"]:
            seq, heads = balanced_splits(seq_total, ranks), balanced_splits(heads_total, ranks)
            for dtype in (torch.float32, torch.float64):
                x = torch.randn(batch, seq[rank], heads_total, dim, generator=generator).to(dtype)
                whole = torch.cat(gathered(x, [(batch, tokens, heads_total, dim) for tokens in seq]), dim=1)
                scattered = communicator.scatter_heads(x, seq_splits=seq, head_splits=heads)
                assert torch.equal(scattered, take(whole, heads, rank, 2))
                y = torch.randn(batch, seq_total, heads[rank], dim, generator=generator).to(dtype)
                whole = torch.cat(gathered(y, [(batch, seq_total, share, dim) for share in heads]), dim=2)
                returned = communicator.gather_heads(y, seq_splits=seq, head_splits=heads)
                assert torch.equal(returned, take(whole, seq, rank, 1))
                equal += 2
    dist.destroy_process_group()
    return {"equal": equal}


def idle(context: RankContext) -> dict[str, Any]:
    """Rank 1 leaves or is lost while the others are between calls; what ``check`` says to them."""
    communicator = context.open()
    x = torch.ones(1, 2, context.num_ranks, 4)
    communicator.scatter_heads(x)
    communicator.check()
    if context.rank == 1 and context.options["leaves"]:
        communicator._membership.release()
        os._exit(0)
    context.pause("idle")
    try:
        communicator.check()
    except UlyssesPeerError as error:
        return fault_of(error)
    finally:
        communicator.close()
    return {}


def two_groups(context: RankContext) -> dict[str, Any]:
    """Two communicators of overlapping ranks, the second of ranks 0 and 1 only, used in turns."""
    fds = socket.recv_fds(context.control, 16, 2)[1] if context.rank < 2 else []
    equal = 0
    with contextlib.ExitStack() as stack:
        wide = stack.enter_context(context.open())
        pair = None
        if fds:
            group = RankGroup.from_fds(rank=context.rank, num_ranks=2, fds=fds)
            pair = stack.enter_context(UlyssesCommunicator(group, max_bytes=1 << 20, timeout_s=30.0))
        for call in range(50):
            whole = whole_tensor(call, 1, 6, 6, 4, torch.float32)
            x = take(whole, (2, 2, 2), context.rank, 1)
            equal += torch.equal(wide.scatter_heads(x, tag="wide"), take(whole, (2, 2, 2), context.rank, 2))
            if pair is not None:
                half = whole[:, :4]
                mine = pair.scatter_heads(x, tag="pair")
                equal += torch.equal(mine, take(half, (3, 3), context.rank, 2))
    return {"equal": equal}


def many_lives(context: RankContext) -> dict[str, Any]:
    """Communicators on groups that arrive one by one; descriptors, mappings and resident memory before and after."""

    def footprint() -> tuple[int, int, int]:
        gc.collect()
        with open("/proc/self/maps") as maps:
            mappings = sum("ithaka-ulysses" in line for line in maps)
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1])
        return len(os.listdir("/proc/self/fd")), mappings, resident

    def live(arena_fd: int, verdict_fd: int) -> None:
        group = RankGroup(context.rank, context.num_ranks, arena_fd, verdict_fd)
        with UlyssesCommunicator(group, max_bytes=8 << 20) as communicator:
            x = torch.ones(1, 64, 4, 64)
            communicator.scatter_qkv(x, x, x)
            communicator.gather_heads(communicator.scatter_heads(x))

    live(context.arena_fd, context.verdict_fd)
    after_few = footprint()
    for number in range(context.options["lives"]):
        context.say(f"life {number}")
        _, fds, _, _ = socket.recv_fds(context.control, 16, 2)
        live(*fds)
        if number == 10:
            after_few = footprint()
    return {"after_few": after_few, "after_all": footprint()}


def compiled(context: RankContext) -> dict[str, Any]:
    """A model's block around the exchanges in one graph, against the same block run eagerly."""
    ranks, rank = context.num_ranks, context.rank
    heads, seq, width = 2 * ranks, 4 * ranks, 2 * ranks * 8
    torch.manual_seed(0)
    weight = torch.randn(3 * width, width) / width**0.5
    with context.open() as communicator:

        def block(x: torch.Tensor) -> torch.Tensor:
            q, k, v = (x @ weight.T).view(1, seq // ranks, 3, heads, 8).unbind(2)
            communicator.scatter_heads_async(v, "v")
            q, k = communicator.scatter_heads(q.sin()), communicator.scatter_heads(k.cos())
            (v,) = communicator.wait("v")
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + communicator.gather_heads(attended.transpose(1, 2)).reshape(x.shape)
            q, k, v = communicator.scatter_qkv(*(x @ weight.T).view(1, seq // ranks, 3, heads, 8).unbind(2))
            return x + communicator.gather_heads(q * k + v).reshape(x.shape)

        graph = torch.compile(block, fullgraph=True, backend=context.options["backend"])
        equal = 0
        with torch.no_grad():
            for call in range(4):
                x = take(whole_tensor(call, 1, seq, 1, width, torch.float32), (seq // ranks,) * ranks, rank, 1)[:, :, 0]
                x = x / 100
                equal += torch.allclose(graph(x), block(x), atol=1e-6)
            _opcheck(communicator, torch.randn(1, 3, heads, 8))
            turns = int(communicator.turn)
        return {"equal": equal, "turns": turns > 0}


def _opcheck(communicator: UlyssesCommunicator, x: torch.Tensor) -> None:
    from ithaka.comm_ext.ulysses import ops

    out = torch.empty(1, 3 * communicator.num_ranks, x.shape[2] // communicator.num_ranks, 8)
    turn, handle = communicator.turn, communicator.handle
    torch.library.opcheck(ops.exchange_op, ([x], [out], turn, handle, False, None, None))
    torch.library.opcheck(ops.exchange_op, ([out.clone()], [x.clone()], turn, handle, True, None, None))


SCENARIOS: dict[str, Callable[[RankContext], dict[str, Any]]] = {
    "exchange_loop": exchange_loop,
    "random_calls": random_calls,
    "against_gloo": against_gloo,
    "idle": idle,
    "two_groups": two_groups,
    "many_lives": many_lives,
    "compiled": compiled,
}
