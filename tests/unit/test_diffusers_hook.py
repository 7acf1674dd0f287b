"""The hook knows the diffusers that it replaces a part of, and refuses any other."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
from diffusers.models import attention_dispatch
from tests.unit.ulysses_loopback import on_every_rank

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator
from ithaka.workers.layers import diffusers_hook
from ithaka.workers.layers.diffusers_hook import SEAM, DiffusersSeamError, attention_through, check_seam


def seam() -> Any:
    return getattr(attention_dispatch, SEAM)


def test_the_installed_release_is_known() -> None:
    assert check_seam(diffusers.__version__, seam()) is seam()


def test_another_release_is_refused_with_what_to_install() -> None:
    with pytest.raises(DiffusersSeamError, match=r"diffusers 0\.43\.0 has not been tested.*install diffusers 0\.42\.\*"):
        check_seam("0.43.0", seam())


def test_a_function_that_is_gone_is_refused() -> None:
    with pytest.raises(DiffusersSeamError, match=f"has no attention_dispatch.{SEAM}"):
        check_seam("0.42.9", None)


def test_other_parameters_are_refused_and_named() -> None:
    def newer(query: Any, key: Any, value: Any, window: Any) -> None: ...

    with pytest.raises(DiffusersSeamError, match="takes query, key, value, window; expected query, key, value, attn_mask"):
        check_seam("0.42.9", newer)


def test_nothing_is_replaced_where_the_release_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    before = seam()
    monkeypatch.setattr(diffusers, "__version__", "1.0.0")
    with UlyssesCommunicator(None, max_bytes=1) as alone, pytest.raises(DiffusersSeamError), attention_through(alone):
        pass
    assert seam() is before


def test_masks_of_a_rank_become_masks_of_all() -> None:
    def body(communicator: UlyssesCommunicator) -> torch.Tensor:
        first = 3 * communicator.rank
        mask = torch.arange(12).view(2, 1, 1, 6)[..., first : first + 3]
        return diffusers_hook._whole_mask(communicator, mask, None)

    for whole in on_every_rank(2, body):
        assert isinstance(whole, torch.Tensor), whole
        assert torch.equal(whole, torch.arange(12).view(2, 1, 1, 6))
