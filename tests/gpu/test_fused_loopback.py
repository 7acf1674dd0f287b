"""The fused call with all ranks on one GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_calibration import Launch
from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from tests.fused_cases import Case, draw, furthest
from tests.gpu.fused_checks import check_fused_cases, check_fused_graphs
from tests.gpu.loopback import Threads, on_every_rank, only
from tests.gpu.test_ulysses_loopback import holding_back

pytestmark = pytest.mark.gpu


def few_blocks(num_ranks: int) -> dict[str, Any]:
    """All ranks fit on one GPU at once, one block a multiprocessor."""
    return {"calibration": only(Launch(96 // num_ranks, 4, 0.0)), "max_bytes": 1 << 29}


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_every_case(num_ranks: int) -> None:
    on_every_rank(num_ranks, lambda ranks: check_fused_cases(ranks, rounds=3), **few_blocks(num_ranks))


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_graphs_replay_between_eager_calls_with_late_ranks(num_ranks: int) -> None:
    together = Threads(num_ranks)

    def body(communicator: UlyssesCommunicator) -> None:
        check_fused_graphs(communicator, 40, holding_back(communicator.rank, num_ranks), together)

    on_every_rank(num_ranks, body, **few_blocks(num_ranks))


def test_the_copy_engine_gets_what_torch_made_of_them() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        check_fused_cases(communicator, rounds=1)

    on_every_rank(2, body, backend="copy_engine", max_bytes=1 << 29)


def test_a_head_dim_that_is_not_served_is_refused_and_the_group_goes_on() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        x = torch.zeros(1, 8, 4, 80, device=communicator.device)
        with pytest.raises(UlyssesInputError, match="head dims 64 and 128, not 80") as caught:
            communicator.fused_qk_norm_rope_scatter(x, x, x, norm=None, rope=None)
        assert caught.value.code is UlyssesErrorCode.BAD_ARGUMENT
        assert communicator.scatter_qkv(x, x, x)[0].shape == (1, 16, 2, 80)

    on_every_rank(2, body)


def test_a_compiled_function_calls_it_in_one_graph() -> None:
    case = Case((40, 40), (3, 3), (3, 3), 128, torch.bfloat16, "row", "interleaved")

    def body(communicator: UlyssesCommunicator) -> None:
        drawn = draw(case, communicator.rank, communicator.device, 0)
        norm, rope = drawn.transform.norm, drawn.transform.rope

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return communicator.fused_qk_norm_rope_scatter(q, k, v, norm=norm, rope=rope)

        received = torch.compile(call, fullgraph=True, backend="eager")(*drawn.qkv)
        assert max(furthest(got, wanted) for got, wanted in zip(received, drawn.wanted, strict=True)) <= 1

    on_every_rank(2, body)
