"""The exchange over torch.distributed: as good as the others, taken when devices can't do better, refused with every reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.cuda_emulation import pretend_devices
from tests.unit.ulysses_loopback import numbered, on_every_rank, on_every_seat, own_shard

from ithaka.comm_ext.ulysses import collective, cuda_member, joining
from ithaka.comm_ext.ulysses.collective import CollectiveExchange, CollectiveMember
from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.comm_ext.ulysses.cuda_meeting import obstacle
from ithaka.comm_ext.ulysses.cuda_topology import link_of
from ithaka.comm_ext.ulysses.errors import UlyssesBackendError, UlyssesErrorCode, UlyssesPeerError
from ithaka.comm_ext.ulysses.group import RankGroup


def card(uuid: str, reach: dict[str, list[bool]] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "error": None,
        "pid": hash(uuid),
        "uuid": uuid,
        "source_hash": "s",
        "calibration": 1,
        "driver": 13000,
        "reach": reach or {},
        **changes,
    }


def test_devices_that_cannot_write_to_each_other_are_an_obstacle() -> None:
    both = [card("a", {"b": [True, True]}), card("b", {"a": [True, True]})]
    assert obstacle(both) is None
    one_way = [card("a", {"b": [True, True]}), card("b", {"a": [False, False]})]
    assert "GPU of rank 1 can't write to the GPU of rank 0" in str(obstacle(one_way))
    assert obstacle([card("a"), card("b")]) is None  # hidden from each other: mapping will tell


@pytest.mark.parametrize(
    ("forth", "back", "link"),
    [
        ([True, True], [True, True], "nvlink"),
        ([True, True], [True, False], "pcie"),
        ([True, False], [True, False], "pcie"),
        (None, [True, True], "unknown"),
    ],
)
def test_the_slowest_link_is_the_groups(forth: list[bool] | None, back: list[bool], link: str) -> None:
    cards = [card("a", None if forth is None else {"b": forth}), card("b", {"a": back})]
    assert link_of(cards) == link
    assert link_of([card("a"), card("a")]) == "one device"


def test_over_pcie_the_copy_engine_does_it_all(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    pretend_devices(monkeypatch, engine)
    monkeypatch.setattr(cuda_member, "link_of", lambda cards: "pcie")

    def body(communicator: UlyssesCommunicator) -> dict[str, Any]:
        communicator.scatter_heads(torch.ones(1, 4, 2, 16))
        exchange: Any = communicator._exchange
        site: Any = next(iter(communicator._calls._sites.values())).site
        return {"link": communicator.describe()["link"], "remote_blocks": site.launch.remote_blocks, "is": exchange._backend}

    for described in on_every_rank(2, body, device="cuda:0"):
        assert described == {"link": "pcie", "remote_blocks": 0, "is": "copy_engine"}


def on_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's part is played by gloo, on the CPU."""
    opened, tried, constructed, joined = collective.open_process_group, collective.try_out, CollectiveExchange, CollectiveMember
    cpu = torch.device("cpu")

    def open_on_cpu(store: Any, rank: int, ranks: int, device: torch.device, timeout_s: float) -> Any:
        return opened(store, rank, ranks, cpu, timeout_s)

    monkeypatch.setattr(joining, "open_process_group", open_on_cpu)
    monkeypatch.setattr(joining, "try_out", lambda group, ranks, device: tried(group, ranks, cpu))
    monkeypatch.setattr(
        joining, "CollectiveExchange", lambda group, rendezvous, device, name: constructed(group, rendezvous, cpu, name)
    )
    monkeypatch.setattr(joining, "CollectiveMember", lambda rendezvous, group, aborts: joined(rendezvous, group, False))


def test_auto_falls_back_together_and_says_why(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    pretend_devices(monkeypatch, engine)
    on_gloo(monkeypatch)
    monkeypatch.setattr(cuda_member, "find_library", lambda: None)
    whole = numbered(1, 6, 4, 8)

    def body(communicator: UlyssesCommunicator) -> tuple[str, str | None]:
        rank = communicator.rank
        for _ in range(3):
            got = communicator.scatter_heads(own_shard(rank, (3, 3), whole, 1), tag="t")
            assert torch.equal(got, own_shard(rank, (2, 2), whole, 2))
        communicator.check()
        return communicator.backend, communicator.fallback_reason

    for outcome in on_every_rank(2, body, device="cuda:0"):
        assert isinstance(outcome, tuple), outcome
        assert outcome[0] == "nccl"
        assert "python -m ithaka.comm_ext.build" in str(outcome[1])


def test_an_engine_that_was_asked_for_is_never_replaced(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    pretend_devices(monkeypatch, engine)
    on_gloo(monkeypatch)
    monkeypatch.setattr(cuda_member, "find_library", lambda: None)

    def body(seat: RankGroup) -> None:
        UlyssesCommunicator(seat, max_bytes=1 << 16, device="cuda:0", backend="sm")

    for outcome in on_every_seat(2, body):
        assert isinstance(outcome, UlyssesBackendError), outcome


def test_if_the_fallback_fails_on_one_rank_all_hear_both_reasons(monkeypatch: pytest.MonkeyPatch, engine: Path) -> None:
    pretend_devices(monkeypatch, engine)
    monkeypatch.setattr(cuda_member, "find_library", lambda: None)

    def refuse(store: Any, rank: int, *arguments: Any) -> Any:
        if rank == 1:
            raise RuntimeError("duplicate GPU")
        return object()

    monkeypatch.setattr(joining, "open_process_group", refuse)

    def body(seat: RankGroup) -> None:
        UlyssesCommunicator(seat, max_bytes=1 << 16, device="cuda:0")

    for outcome in on_every_seat(2, body):
        assert isinstance(outcome, UlyssesBackendError), outcome
        assert outcome.code is UlyssesErrorCode.BACKEND_UNAVAILABLE
        assert "is not built" in str(outcome)
        assert "rank 1: nccl can't be used: duplicate GPU" in str(outcome)


def test_calls_that_differ_never_start_a_transfer() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        communicator.scatter_heads(torch.ones(1, 4, 2, 8))
        exchange: Any = communicator._exchange
        exchange._group = None  # starting one would fail
        with pytest.raises(UlyssesPeerError) as caught:
            communicator.scatter_heads(torch.ones(1, 4 + communicator.rank, 2, 8))
        assert caught.value.code is UlyssesErrorCode.PEER_DISAGREED

    assert on_every_rank(2, body, backend="gloo") == [None, None]


def test_a_transfer_that_fails_breaks_the_group() -> None:
    def body(communicator: UlyssesCommunicator) -> None:
        class Failing:
            def wait(self) -> None:
                raise RuntimeError("connection reset")

        exchange: Any = communicator._exchange
        if communicator.rank == 1:
            exchange._group = type("Group", (), {"alltoall_base": lambda self, *all: Failing()})()
        else:
            exchange._group = type(
                "Group", (), {"alltoall_base": lambda self, *all: type("Done", (), {"wait": lambda self: None})()}
            )()
        with pytest.raises(UlyssesPeerError, match="rank 1 gave up: a transfer failed: connection reset"):
            while True:
                communicator.scatter_heads(torch.ones(1, 4, 2, 8))

    assert on_every_rank(2, body, backend="gloo") == [None, None]
