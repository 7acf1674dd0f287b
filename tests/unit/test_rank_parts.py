"""The small parts of a rank: registry, device, session memory, descriptors."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
import torch

from ithaka.server.model_group import rank_fds
from ithaka.workers.contract import ConfigureRank
from ithaka.workers.device import pick_device
from ithaka.workers.families import registry
from ithaka.workers.families.base import FamilyInputError, FamilyLoadError
from ithaka.workers.families.synthetic.family import load
from ithaka.workers.group import Group
from ithaka.workers.session_memory import SessionLimitError, SessionMemory
from ithaka.workers.stages.contract import Placement
from ithaka.workers.wire import WireError


def _memory(max_sessions: int) -> SessionMemory:
    family = load(model="m", options={}, device=torch.device("cpu"), rank=0, num_ranks=1, communicator=None)
    return SessionMemory(family, max_sessions)


def _open(memory: SessionMemory, session_id: str, **options: Any) -> None:
    memory.open(session_id, seed=0, prompt="", options=options)


def test_our_families_are_found_and_others_are_named() -> None:
    assert registry.resolve("synthetic") is load
    assert {"labyrinth", "synthetic"} <= set(registry.family_names())
    with pytest.raises(FamilyLoadError, match="labyrinth, synthetic"):
        registry.resolve("nothing")


def test_installed_families_come_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [
            EntryPoint("theirs", "ithaka.workers.families.synthetic.family:load", registry.ENTRY_POINT_GROUP),
            EntryPoint("broken", "ithaka.no_such_module:load", registry.ENTRY_POINT_GROUP),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", lambda **selection: points.select(**selection))
    assert registry.resolve("theirs") is load
    assert "theirs" in registry.family_names()
    with pytest.raises(FamilyLoadError, match="no_such_module"):
        registry.resolve("broken")


def test_devices_follow_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cpu", 1, 2) == torch.device("cpu")
    assert pick_device("auto", 1, 2) == torch.device("cuda", 1)
    assert pick_device("auto", 1, 4) == torch.device("cpu")
    assert pick_device("cuda", 1, 2) == torch.device("cuda", 1)
    assert pick_device("cuda:1", 0, 1) == torch.device("cuda", 1)
    with pytest.raises(FamilyLoadError, match="needs 3 CUDA devices, there are 2"):
        pick_device("cuda:1", 0, 2)


def test_session_memory_is_bounded_and_given_back() -> None:
    memory = _memory(2)
    with pytest.raises(FamilyInputError):
        _open(memory, "refused", width=1)
    _open(memory, "a")
    _open(memory, "b")
    assert memory.is_full and "a" in memory
    with pytest.raises(SessionLimitError, match="2 of 2"):
        _open(memory, "c")
    memory.close("a")
    memory.close("a")
    with pytest.raises(SessionLimitError):
        _open(memory, "b")
    _open(memory, "c")
    memory.close_all()
    assert "b" not in memory and "c" not in memory
    with pytest.raises(KeyError):
        memory.get("b")


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_each_rank_gets_its_own_descriptors(num_ranks: int) -> None:
    fds = rank_fds(num_ranks)
    try:
        counts = [len(own) for own in fds]
        assert counts == ([0] if num_ranks == 1 else [2 + num_ranks - 1] + [3] * (num_ranks - 1))
        assert len({fd for own in fds for fd in own}) == sum(counts)
    finally:
        for own in fds:
            for fd in own:
                os.close(fd)


def test_wrong_descriptors_are_refused() -> None:
    configure = ConfigureRank("g", 1, 2, "m", "synthetic", "cpu", Placement("whole", 1, 2, 2), 1, 1, 0.1, 1.0)
    with pytest.raises(WireError, match="rank 1 of 2 got 1 descriptors"):
        Group.join(configure, [0])
