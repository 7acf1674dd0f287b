"""Which ranks form a group of which kind."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.comm_ext.ulysses.errors import UlyssesInputError
from ithaka.comm_ext.ulysses.mesh import Mesh, MeshDescriptors


def test_the_last_axis_has_neighbours() -> None:
    mesh = Mesh(cfg=2, ulysses=3)
    assert mesh.num_ranks == 6
    assert mesh.groups("ulysses") == ((0, 1, 2), (3, 4, 5))
    assert mesh.groups("cfg") == ((0, 3), (1, 4), (2, 5))
    assert mesh.place("cfg", 4) == (1, 1)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3))
@settings(deadline=None)
def test_every_rank_is_in_one_group_of_each_kind(sizes: list[int]) -> None:
    mesh = Mesh(**{f"axis{number}": size for number, size in enumerate(sizes)})
    for axis, size in mesh.sizes.items():
        groups = mesh.groups(axis)
        assert sorted(rank for members in groups for rank in members) == list(range(mesh.num_ranks))
        assert {len(members) for members in groups} == {size}
        for rank in range(mesh.num_ranks):
            number, place = mesh.place(axis, rank)
            assert groups[number][place] == rank
    # Two ranks share groups of at most one kind of more than one rank.
    for one in range(mesh.num_ranks):
        for other in range(one):
            shared = [axis for axis in mesh.sizes if mesh.place(axis, one)[0] == mesh.place(axis, other)[0]]
            assert len(shared) <= 1


def test_descriptors_by_group() -> None:
    before = set(os.listdir("/proc/self/fd"))
    mesh = Mesh(ring=1, tp=2, ulysses=2)
    with MeshDescriptors.create(mesh, "tp") as descriptors:
        fds = [descriptors.fds_of(rank) for rank in range(4)]
        assert fds[0] == fds[2] != fds[1] == fds[3]
        assert [mesh.seat("tp", rank, fds[rank]).rank for rank in range(4)] == [0, 0, 1, 1]
    with MeshDescriptors.create(mesh, "ring") as alone:
        assert alone.fds_of(3) == ()
        assert mesh.seat("ring", 3, ()).num_ranks == 1
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_is_no_mesh() -> None:
    for sizes in ({}, {"ulysses": 0}):
        with pytest.raises(UlyssesInputError, match="at least one rank"):
            Mesh(**sizes)
    with pytest.raises(UlyssesInputError, match="no axis 'ring': there are ulysses"):
        Mesh(ulysses=2).groups("ring")
    with pytest.raises(UlyssesInputError, match="not one of 2"):
        Mesh(ulysses=2).place("ulysses", 2)
