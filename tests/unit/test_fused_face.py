"""The fused call on ranks without a GPU: what it computes, what it leases, what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.fused_cases import Case, draw, furthest
from tests.unit.ulysses_loopback import on_every_rank

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.fused_transform import QkNorm, QkRope, QkTransform

CPU = torch.device("cpu")
WAN = Case((3, 5), (2, 2), (2, 2), 16, torch.float32, "row", "interleaved")
CASES = {
    "wan": WAN,
    "heads, halves": replace(WAN, span="head", pairing="halves", batch=2),
    "bf16, odd head dim, uneven heads": replace(WAN, dtype=torch.bfloat16, dim=10, head_splits=(3, 2), kv_head_splits=(3, 2)),
    "grouped queries": replace(WAN, seq_splits=(2, 2, 2), head_splits=(2, 4, 2), kv_head_splits=(1, 2, 1)),
    "norm only": replace(WAN, pairing=None, dtype=torch.float16),
    "positions only": replace(WAN, span=None, arrangement="permuted"),
    "neither": replace(WAN, span=None, pairing=None),
}


def fused(communicator: UlyssesCommunicator, case: Case, transform: QkTransform, qkv: Any, **options: Any) -> Any:
    q, k, v = qkv
    splits: dict[str, Any] = {"seq_splits": case.seq_splits, "head_splits": case.head_splits}
    return communicator.fused_qk_norm_rope_scatter(q, k, v, norm=transform.norm, rope=transform.rope, **splits, **options)


def succeed(outcomes: list[Any]) -> None:
    assert [outcome for outcome in outcomes if outcome is not None] == []


@pytest.mark.parametrize("tag", ["qkv", None])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equal_to_the_definition(case: Case, tag: str | None) -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        for seed in range(4):
            drawn = draw(case, communicator.rank, CPU, seed)
            received = fused(communicator, case, drawn.transform, drawn.qkv, tag=tag)
            assert torch.equal(received[2], drawn.wanted[2])
            for got, wanted in zip(received, drawn.wanted, strict=True):
                assert got.dtype == case.dtype
                assert furthest(got, wanted) <= 1

    succeed(on_every_rank(len(case.seq_splits), body))


def test_alone_it_is_the_transform() -> None:
    case = replace(WAN, seq_splits=(4,), head_splits=(3,), kv_head_splits=(3,))
    drawn = draw(case, 0, CPU, 0)
    with UlyssesCommunicator(None, max_bytes=1) as alone:
        for got, wanted in zip(fused(alone, case, drawn.transform, drawn.qkv), drawn.wanted, strict=True):
            assert furthest(got, wanted) <= 1


def test_one_key_head_for_all_ranks() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        drawn = draw(replace(WAN, seq_splits=(3, 3), head_splits=(2, 2), kv_head_splits=(1,)), 0, CPU, 0)
        q, k, v = drawn.qkv
        norm, rope = drawn.transform.norm, drawn.transform.rope
        queries, keys, values = communicator.fused_qk_norm_rope_scatter(q, k, v, norm=norm, rope=rope)
        turned_q, turned_k = drawn.transform.apply(q, k)  # every rank sends the same shard here
        own = slice(2 * communicator.rank, 2 * communicator.rank + 2)
        assert torch.equal(queries, turned_q[:, :, own].repeat(1, 2, 1, 1))
        assert torch.equal(keys, turned_k.repeat(1, 2, 1, 1))
        assert torch.equal(values, v.repeat(1, 2, 1, 1))

    succeed(on_every_rank(2, body))


COMPILED = {
    "wan": replace(WAN, seq_splits=(4, 4)),
    "halves of grouped queries": replace(
        WAN, seq_splits=(4, 4), head_splits=(4, 2), kv_head_splits=(2, 1), span="head", pairing="halves"
    ),
    "neither": replace(WAN, seq_splits=(4, 4), span=None, pairing=None),
}


@pytest.mark.parametrize("case", COMPILED.values(), ids=COMPILED)
def test_compiled_in_one_graph(case: Case) -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        drawn = draw(case, communicator.rank, CPU, 0)

        def call(*qkv: torch.Tensor) -> Any:
            return fused(communicator, case, drawn.transform, qkv)

        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for got, wanted in zip(compiled(*drawn.qkv), drawn.wanted, strict=True):
            assert furthest(got, wanted) <= 1

    succeed(on_every_rank(2, body))


def test_results_are_leases() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        drawn = draw(WAN, communicator.rank, CPU, 0)
        held = fused(communicator, WAN, drawn.transform, drawn.qkv)
        fused(communicator, WAN, drawn.transform, drawn.qkv)
        with pytest.raises(UlyssesInputError) as caught:
            fused(communicator, WAN, drawn.transform, drawn.qkv)
        assert caught.value.code is UlyssesErrorCode.LEASE_OVERRUN
        assert held[0] is not None

    succeed(on_every_rank(2, body))


def test_weights_of_any_dtype_become_float32() -> None:
    halves = torch.ones(8, 2, dtype=torch.bfloat16)[:, 0]
    norm = QkNorm.of(halves, halves, eps=1e-6, span="head")
    assert norm.q_weight.dtype is torch.float32
    assert norm.q_weight.is_contiguous()


WRONG = {
    "a weight of one head for a row": {"q_weight": torch.ones(16)},
    "a weight of 16 bits": {"k_weight": torch.ones(64, dtype=torch.bfloat16)},
    "a weight with gaps": {"k_weight": torch.ones(64, 2)[:, 0]},
    "an unknown span": {"span": "channel"},
    "an eps below 0": {"eps": -1.0},
    "an eps that is no number": {"eps": float("nan")},
    "phases of all tokens": {"phases": torch.ones(8, 8, dtype=torch.complex64)},
    "phases of another batch": {"phases": torch.ones(2, 3, 8, dtype=torch.complex64)},
    "phases that are real": {"phases": torch.ones(3, 8)},
    "an unknown pairing": {"pairing": "thirds"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_and_the_group_goes_on(wrong: dict[str, Any]) -> None:
    case = replace(WAN, seq_splits=(3, 3))

    def body(communicator: UlyssesCommunicator) -> None:
        drawn = draw(case, communicator.rank, CPU, 0)
        norm, rope = drawn.transform.norm, drawn.transform.rope
        assert norm is not None and rope is not None
        bad = QkTransform(
            replace(norm, **{name: value for name, value in wrong.items() if hasattr(norm, name)}),
            replace(rope, **{name: value for name, value in wrong.items() if hasattr(rope, name)}),
        )
        with pytest.raises(UlyssesInputError) as caught:
            fused(communicator, case, bad, drawn.qkv)
        assert caught.value.code is UlyssesErrorCode.BAD_ARGUMENT
        assert torch.equal(fused(communicator, case, drawn.transform, drawn.qkv)[2], drawn.wanted[2])

    succeed(on_every_rank(2, body))


def test_positions_need_pairs() -> None:
    x, phases = torch.zeros(1, 2, 2, 5), torch.ones(2, 2, dtype=torch.complex64)
    with pytest.raises(UlyssesInputError, match="even head dim"):
        QkTransform(None, QkRope(phases)).check(x, x)
