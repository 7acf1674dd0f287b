"""What a communicator refuses, and who else learns of it: bad calls, ranks that disagree, constructors that can't be served."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.ulysses_loopback import on_every_rank, on_every_seat

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.errors import (
    UlyssesBackendError,
    UlyssesError,
    UlyssesErrorCode,
    UlyssesInputError,
    UlyssesPeerError,
)
from ithaka.comm_ext.ulysses.group import RankGroup


def _too_large(communicator: UlyssesCommunicator) -> None:
    communicator.scatter_heads(torch.ones(1, 4096, 4, 64))


def _too_many_tags(communicator: UlyssesCommunicator) -> None:
    for tag in range(1000):
        communicator.scatter_heads(torch.ones(1, 64, 4, 64), tag=str(tag))


def _aliased(communicator: UlyssesCommunicator) -> None:
    x = torch.ones(1, 4, 2, 4)
    communicator.scatter_heads(x, out=x.view(1, 8, 1, 4))


def _tag_under_way(communicator: UlyssesCommunicator) -> None:
    communicator.scatter_heads_async(torch.ones(1, 4, 2, 4), "twice")
    try:
        communicator.scatter_heads(torch.ones(1, 4, 2, 4), tag="twice")
    finally:
        communicator.wait("twice")


def _too_many_under_way(communicator: UlyssesCommunicator) -> None:
    tags = [f"t{number}" for number in range(17)]
    try:
        for tag in tags:
            communicator.scatter_heads_async(torch.ones(1, 4, 2, 4), tag)
    finally:
        communicator.wait(tags[:16])


INPUT_ERRORS: dict[str, tuple[UlyssesErrorCode, Callable[[UlyssesCommunicator], Any]]] = {
    "three dimensions": (UlyssesErrorCode.BAD_SHAPE, lambda c: c.scatter_heads(torch.ones(4, 2, 4))),
    "no batch": (UlyssesErrorCode.BAD_SHAPE, lambda c: c.scatter_heads(torch.ones(0, 4, 2, 4))),
    "heads": (UlyssesErrorCode.BAD_SHAPE, lambda c: c.scatter_heads(torch.ones(1, 4, 3, 4))),
    "tokens": (UlyssesErrorCode.BAD_SHAPE, lambda c: c.gather_heads(torch.ones(1, 5, 2, 4))),
    "splits": (UlyssesErrorCode.BAD_SHAPE, lambda c: c.scatter_heads(torch.ones(1, 4, 3, 4), head_splits=(1, 1))),
    "qkv dimensions": (
        UlyssesErrorCode.BAD_SHAPE,
        lambda c: c.scatter_qkv(torch.ones(4), torch.ones(4), torch.ones(4), head_splits=(1, 1)),
    ),
    "device": (UlyssesErrorCode.BAD_DEVICE, lambda c: c.scatter_heads(torch.ones(1, 4, 2, 4, device="meta"))),
    "layout": (UlyssesErrorCode.BAD_DEVICE, lambda c: c.scatter_heads(torch.ones(1, 4, 2, 4).to_sparse())),
    "gradient": (
        UlyssesErrorCode.NEEDS_GRADIENT,
        lambda c: c.scatter_heads(torch.ones(1, 4, 2, 4, requires_grad=True)),
    ),
    "too large": (UlyssesErrorCode.OVER_CAPACITY, _too_large),
    "too many tags": (UlyssesErrorCode.OVER_CAPACITY, _too_many_tags),
    "aliased out": (UlyssesErrorCode.ALIASED_OUTPUT, _aliased),
    "shape of out": (
        UlyssesErrorCode.BAD_SHAPE,
        lambda c: c.scatter_heads(torch.ones(1, 4, 2, 4), out=torch.ones(1, 4, 2, 4)),
    ),
    "dtype of out": (
        UlyssesErrorCode.BAD_DTYPE,
        lambda c: c.scatter_heads(torch.ones(1, 4, 2, 4), out=torch.ones(1, 8, 1, 4, dtype=torch.float16)),
    ),
    "device of out": (
        UlyssesErrorCode.BAD_DEVICE,
        lambda c: c.scatter_heads(torch.ones(1, 4, 2, 4), out=torch.ones(1, 8, 1, 4, device="meta")),
    ),
    "unknown tag": (UlyssesErrorCode.BAD_TAG, lambda c: c.wait("nobody")),
    "no tag": (UlyssesErrorCode.BAD_TAG, lambda c: c.wait(())),
    "tag under way": (UlyssesErrorCode.BAD_TAG, _tag_under_way),
    "too many under way": (UlyssesErrorCode.BAD_TAG, _too_many_under_way),
}


@pytest.mark.parametrize("name", INPUT_ERRORS)
def test_an_input_error_of_all_ranks_leaves_the_communicator_usable(name: str) -> None:
    code, call = INPUT_ERRORS[name]

    def body(communicator: UlyssesCommunicator) -> None:
        with pytest.raises(UlyssesInputError) as caught:
            call(communicator)
        assert caught.value.code is code
        x = torch.full((1, 1, 2, 4), float(communicator.rank))
        assert communicator.scatter_heads(x)[0, :, 0, 0].tolist() == [0, 1]
        communicator.check()

    assert on_every_rank(2, body) == [None, None]


@pytest.mark.parametrize("name", ["heads", "too large", "aliased out", "unknown tag", "gradient"])
def test_an_input_error_of_one_rank_breaks_the_communicator(name: str) -> None:
    code, call = INPUT_ERRORS[name]

    def body(communicator: UlyssesCommunicator) -> None:
        if communicator.rank == 1:
            with pytest.raises(UlyssesInputError) as refused:
                call(communicator)
            assert refused.value.code is code
        for _ in range(2):
            with pytest.raises(UlyssesPeerError) as caught:
                communicator.scatter_heads(torch.ones(1, 4, 2, 4))
            assert caught.value.rank == 1
            assert caught.value.code is UlyssesErrorCode.PEER_REFUSED

    assert on_every_rank(2, body) == [None, None]


DISAGREEMENTS: dict[str, Callable[[UlyssesCommunicator], Any]] = {
    "shape": lambda c: c.scatter_heads(torch.ones(1, 4 + c.rank, 2, 4)),
    "dtype": lambda c: c.scatter_heads(torch.ones(1, 4, 2, 4, dtype=torch.float16 if c.rank else torch.float32)),
    "tag": lambda c: c.scatter_heads(torch.ones(1, 4, 2, 4), tag=str(c.rank)),
    "splits": lambda c: c.scatter_heads(torch.ones(1, 4, 3, 4), head_splits=(2, 1) if c.rank else (1, 2)),
    "direction": lambda c: (c.gather_heads if c.rank else c.scatter_heads)(torch.ones(1, 4, 2, 4)),
    "order": lambda c: [c.scatter_heads(torch.ones(1, 4, 2, 4), tag=tag) for tag in ("ab" if c.rank else "ba")],
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_disagree_break_the_communicator(name: str) -> None:
    def body(communicator: UlyssesCommunicator) -> str:
        with pytest.raises(UlyssesPeerError) as caught:
            DISAGREEMENTS[name](communicator)
        assert caught.value.code is UlyssesErrorCode.PEER_DISAGREED
        with pytest.raises(UlyssesPeerError):
            communicator.check()
        return str(caught.value)

    first, second = on_every_rank(2, body)
    assert first == second
    assert isinstance(first, str)


@pytest.mark.parametrize(
    ("options", "kind", "needle"),
    [
        ({"max_bytes": 0}, UlyssesInputError, "max_bytes must be at least 1"),
        ({"timeout_s": 0.0}, UlyssesInputError, "timeout_s must be a positive number"),
        ({"timeout_s": math.inf}, UlyssesInputError, "timeout_s must be a positive number"),
        ({"join_timeout_s": -1.0}, UlyssesInputError, "join_timeout_s must be a positive number"),
        ({"backend": "mpi"}, UlyssesInputError, "backend must be one of"),
        ({"backend": "copy_engine"}, UlyssesBackendError, "is not available"),
        ({"backend": "sm"}, UlyssesBackendError, "is not available"),
        ({"backend": "nccl"}, UlyssesBackendError, "is not available"),
    ],
)
@pytest.mark.parametrize("culprits", [(0, 1), (1,)])
def test_a_constructor_that_one_rank_can_not_serve_fails_on_all(
    options: dict[str, Any], kind: type[UlyssesError], needle: str, culprits: tuple[int, ...]
) -> None:
    def body(seat: RankGroup) -> None:
        UlyssesCommunicator(seat, **{"max_bytes": 1 << 20, **(options if seat.rank in culprits else {})})

    with pytest.raises(kind, match=needle):
        UlyssesCommunicator(None, **{"max_bytes": 1 << 20, **options})
    for rank, error in enumerate(on_every_seat(2, body)):
        assert isinstance(error, kind if rank in culprits else UlyssesPeerError)
        assert needle in str(error)


def test_windows_of_different_size_fail_on_all() -> None:
    outcomes = on_every_seat(2, lambda seat: UlyssesCommunicator(seat, max_bytes=4096 + seat.rank))
    assert {type(error) for error in outcomes} == {UlyssesPeerError}
    assert len({str(error) for error in outcomes}) == 1
