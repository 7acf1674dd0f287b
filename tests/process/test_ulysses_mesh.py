"""Ulysses among other kinds of parallelism, with four processes; and lost ranks of a group over torch.distributed."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import pytest
from tests.process.ulysses_mesh_scenarios import OUTER
from tests.process.ulysses_ranks import RankPool

from ithaka.comm_ext.ulysses.mesh import Mesh, MeshDescriptors


@pytest.fixture(scope="module")
def zygote() -> Iterator[RankPool]:
    with RankPool("tests.process.ulysses_mesh_scenarios") as pool:
        yield pool


@pytest.fixture
def pool(zygote: RankPool) -> Iterator[RankPool]:
    yield zygote
    zygote.end_ranks()


def test_ulysses_inside_of_ring_tensor_and_guidance_parallelism(pool: RankPool) -> None:
    ranks = pool.start("composed", 4)
    for name in OUTER:
        mesh = Mesh(**{name: 2, "ulysses": 2})
        for axis in ("ulysses", name):
            with MeshDescriptors.create(mesh, axis) as descriptors:
                for rank in ranks:
                    socket.send_fds(rank.control, [b"group"], descriptors.fds_of(rank.rank))
    assert [rank.result() for rank in ranks] == [dict.fromkeys(OUTER, True)] * 4


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_by_a_group_over_gloo(pool: RankPool, how: signal.Signals) -> None:
    ranks = pool.start("collective_loop", 3, timeout_s=30.0 if how is signal.SIGKILL else 1.0)
    ranks[1].reached("between_calls")
    ranks[1].signal(how)
    for rank in (ranks[0], ranks[2]):
        result = rank.result()
        assert result["code"] == ("ulysses_peer_died" if how is signal.SIGKILL else "ulysses_peer_timed_out")
        assert result["rank"] == 1
        rank.await_end()


@pytest.mark.parametrize("scenario", ["compiled_parts", "compiled_chunks"])
def test_parts_in_one_graph(pool: RankPool, scenario: str) -> None:
    ranks = pool.start(scenario, 2)
    assert [rank.result(deadline_s=100) for rank in ranks] == [{"equal": 3}] * 2
