"""Proof, over the communicator, that every rank is about to do the same: what a group's tests exercise."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ithaka.workers.families.synthetic.barcode import Barcode

if TYPE_CHECKING:
    from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator

_HEAD_DIM = 16


class Agreement:
    """A digest from each rank to each other one, through one scatter."""

    def __init__(self, communicator: UlyssesCommunicator, num_ranks: int, device: torch.device) -> None:
        self._communicator = communicator
        self._num_ranks = num_ranks
        self._device = device

    def check(self, session_id: str, codes: Sequence[Barcode]) -> None:
        """Raises RuntimeError when the ranks disagree, UlyssesError when one is gone."""
        text = repr((session_id, [(code.number, sorted(code.held), sorted(code.tapped), code.prompt_check) for code in codes]))
        digest = zlib.crc32(text.encode()) % (1 << 24)  # exact as fp32
        local_BsHD = torch.full((1, 1, self._num_ranks, _HEAD_DIM), float(digest), device=self._device)
        all_BShD = self._communicator.scatter_heads(local_BsHD)
        if not bool((all_BShD == float(digest)).all()):
            raise RuntimeError("the ranks disagree about the step")
