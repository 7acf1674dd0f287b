"""One byte a number: the stated error holds for every row, and the exchange adds none."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ulysses_loopback import on_every_rank, own_shard

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.plan import Direction
from ithaka.comm_ext.ulysses.quantised import Wire, dequantise_rows, exchange_quantised, quantise_rows

WIRES: tuple[Wire, ...] = get_args(Wire)
ROUNDING = 1 + 1e-6
"""What float32 arithmetic on scales may add to a bound."""

finite = st.builds(lambda number, power: number * 2.0**power, st.integers(-(2**23), 2**23), st.integers(-83, 83))
rows = st.one_of(
    st.lists(finite, min_size=1, max_size=24),
    st.lists(st.sampled_from([0.0, 1.0, -1.0, 1e-3, 127.0, 448.0, 0.5, 2.0**-10]), min_size=1, max_size=24),
)


def bound(x: torch.Tensor, wire: Wire) -> torch.Tensor:
    largest = x.abs().amax(-1, keepdim=True)
    if wire == "int8":
        return (largest / 254).expand_as(x)
    return torch.maximum(x.abs() / 16, largest / 229_376)


@pytest.mark.parametrize("wire", WIRES)
@given(row=rows)
@settings(deadline=None)
def test_the_error_stays_within_its_bound(wire: Wire, row: list[float]) -> None:
    x = torch.tensor([row], dtype=torch.float32)
    got = dequantise_rows(quantise_rows(x, wire), wire, torch.float32)
    assert got.shape == x.shape
    assert bool(((got - x).abs().double() <= bound(x.double(), wire) * ROUNDING).all()), (got, x)


@pytest.mark.parametrize("wire", WIRES)
def test_a_row_of_zeros_and_a_rows_largest_number_are_exact(wire: Wire) -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, -3.0], [1e-4, 0.0]])
    assert torch.allclose(dequantise_rows(quantise_rows(x, wire), wire, torch.float32), x, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("wire", WIRES)
def test_the_exchange_adds_no_error(wire: Wire, dtype: torch.dtype) -> None:
    whole = torch.randn(2, 7, 5, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    rounded = dequantise_rows(quantise_rows(whole, wire), wire, dtype)
    seq, heads = (4, 3), (3, 2)

    def body(communicator: UlyssesCommunicator) -> None:
        rank = communicator.rank
        x, y = own_shard(rank, seq, whole, 1), own_shard(rank, heads, whole, 2)
        for tag in ("q", None):
            got = exchange_quantised(communicator, Direction.SCATTER, x, wire=wire, tag=tag, seq_splits=seq, head_splits=heads)
            assert got.dtype is dtype
            assert torch.equal(got, own_shard(rank, heads, rounded, 2))
            back = exchange_quantised(communicator, Direction.GATHER, y, wire=wire, tag=tag, seq_splits=seq, head_splits=heads)
            assert torch.equal(back, own_shard(rank, seq, rounded, 1))

    assert on_every_rank(2, body) == [None, None]


def test_what_can_not_be_quantised_is_refused() -> None:
    with pytest.raises(UlyssesInputError) as caught:
        quantise_rows(torch.zeros(1, 4, dtype=torch.int32), "int8")
    assert caught.value.code is UlyssesErrorCode.BAD_DTYPE
    with pytest.raises(UlyssesInputError, match="int8, fp8"):
        quantise_rows(torch.zeros(1, 4), "int4")  # type: ignore[arg-type]
