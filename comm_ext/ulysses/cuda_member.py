"""A rank's membership in a group of GPUs: joining in stages that all ranks pass or leave together, and leaving in order."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ithaka.comm_ext.build import find_library
from ithaka.comm_ext.ulysses.cuda_arena import Arena, HostWords, PeerArenas
from ithaka.comm_ext.ulysses.cuda_binding import Seat
from ithaka.comm_ext.ulysses.cuda_calibration import Calibration
from ithaka.comm_ext.ulysses.cuda_exchange import CudaExchange
from ithaka.comm_ext.ulysses.cuda_faults import FaultBridge
from ithaka.comm_ext.ulysses.cuda_library import MAX_RANKS, CudaCallError, CudaLibrary
from ithaka.comm_ext.ulysses.cuda_meeting import CardTable, obstacle
from ithaka.comm_ext.ulysses.cuda_topology import driver_version, link_of, probe_reach
from ithaka.comm_ext.ulysses.errors import UlyssesBackendError, UlyssesErrorCode
from ithaka.comm_ext.ulysses.group import RankGroup
from ithaka.comm_ext.ulysses.plan import signature
from ithaka.comm_ext.ulysses.rendezvous import Rendezvous

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CudaShare:
    """What one rank brings: all of it freed by ``free``."""

    library: CudaLibrary
    device: int
    arena: Arena
    words: HostWords

    @classmethod
    def create(cls, library_path: Path, device: int, max_bytes: int) -> CudaShare:
        """Load the engine and take the memory. Raises CudaCallError, OSError."""
        library = CudaLibrary(library_path)
        library.load_kernels(device)
        arena = Arena(library, device, max_bytes)
        return cls(library, device, arena, HostWords(library, device))

    def card(self, calibration: Calibration) -> dict[str, Any]:
        """What the others must know."""
        return {
            "error": None,
            "pid": os.getpid(),
            "device": self.device,
            "uuid": self.library.device_facts(self.device).uuid,
            "source_hash": self.library.source_hash,
            "calibration": signature(repr(calibration)),
            "driver": driver_version(),
            "reach": probe_reach(self.library, self.device, torch.cuda.device_count()),
            "address": self.arena.address,
            "handle": self.arena.export().hex(),
        }


class CudaMember:
    """Membership over the rendezvous, with the device's part (see backend.Membership)."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        share: CudaShare,
        peers: PeerArenas,
        exchange: CudaExchange,
        bridge: FaultBridge,
        rank: int,
    ) -> None:
        self._rendezvous, self._share, self._peers = rendezvous, share, peers
        self._bridge, self._rank = bridge, rank
        self.exchange: CudaExchange | None = exchange
        self._left = False

    def refuse(self, reason: str) -> None:
        """See Membership."""
        self._rendezvous.refuse(reason)

    def check(self) -> None:
        """See Membership."""
        self._bridge.check()

    def ensure_sound(self) -> None:
        """See Membership."""
        self._bridge.ensure_sound()

    def abort(self, reason: str) -> None:
        """See Membership."""
        self._rendezvous.abort(reason)
        self._bridge.stop_device(self._rank)

    def close(self) -> None:
        """See Membership. Own work ends, then the peers' arenas are unmapped, then all meet, then the own arena is freed."""
        if not self._left:
            self._leave()
            self._rendezvous.close()
            self._free()

    def release(self) -> None:
        """See Membership."""
        if not self._left:
            self._bridge.stop_device(self._rank)
            self._leave()
            self._rendezvous.release()
            self._free()

    def _leave(self) -> None:
        self._left = True
        try:
            self._share.library.synchronize(self._share.device)  # waits are bounded, so this is
        except CudaCallError as error:
            logger.warning("ulysses.close_unclean: rank %d: %s", self._rank, error)
        self._bridge.close()
        for fault in self._peers.close():
            logger.warning("ulysses.unmap_failed: rank %d: %s", self._rank, fault)

    def _free(self) -> None:
        if self.exchange is not None:
            self.exchange.release()
            self.exchange = None
        self._share.words.free()
        del self._share


def join_devices(
    group: RankGroup,
    rendezvous: Rendezvous,
    cards: CardTable,
    facts: Mapping[str, Any],
    device: torch.device,
    calibration: Calibration | None,
    timeout_s: float,
    join_timeout_s: float,
) -> tuple[CudaMember, CudaExchange]:
    """Join with a device: every rank gets its seat, which keeps ``cards``, or every rank raises.

    Raises UlyssesBackendError with the first rank's obstacle, UlyssesPeerError if a rank is missing or differs.
    """
    index = device.index if device.index is not None else torch.cuda.current_device() if torch.cuda.is_available() else 0
    table_of_launches = calibration if calibration is not None else Calibration.shipped()
    share, card = _bring(group, index, facts["max_bytes"], table_of_launches)
    try:
        cards.write(card)
        rendezvous.join(dict(facts), refusal=None, timeout_s=join_timeout_s)
        met = cards.read_all()
        _raise_obstacle(obstacle(met))
        assert share is not None
        peers, addresses = _map_peers(group, rendezvous, cards, share, met)
    except BaseException:
        if share is not None:
            share.words.free()
        raise
    seat = Seat(index, group.rank, addresses, share.words.device_address, int(timeout_s * 1e9))
    bridge = FaultBridge(rendezvous, share.words, timeout_s)
    link = link_of(met)
    exchange = CudaExchange(
        share.library,
        rendezvous,
        cards,
        seat,
        share.arena,
        max_bytes=facts["max_bytes"],
        backend="copy_engine" if (facts["backend"], link) == ("auto", "pcie") else facts["backend"],  # stores crawl over PCIe
        link=link,
        calibration=table_of_launches,
    )
    return CudaMember(rendezvous, share, peers, exchange, bridge, group.rank), exchange


def _map_peers(
    group: RankGroup, rendezvous: Rendezvous, cards: CardTable, share: CudaShare, met: Sequence[Mapping[str, Any]]
) -> tuple[PeerArenas, tuple[int, ...]]:
    """The second stage: all ranks map all arenas, or all unmap what they could."""
    peers = PeerArenas(share.library, share.device)
    addresses: tuple[int, ...] = ()
    reason = None
    try:
        addresses = peers.open(group.rank, share.arena, met)
    except CudaCallError as error:
        reason = f"can't map a peer's memory: {error}"
    reasons = [card["error"] for card in cards.share(rendezvous, {"error": reason})]
    if any(reasons):
        peers.close()
        cards.share(rendezvous, {"error": None})  # all have unmapped: memory may be freed from here on
        _raise_obstacle(next(f"rank {rank}: {text}" for rank, text in enumerate(reasons) if text))
    return peers, addresses


def _bring(group: RankGroup, device: int, max_bytes: int, calibration: Calibration) -> tuple[CudaShare | None, dict[str, Any]]:
    """This rank's share and its card; a card with an error if there is none."""
    if group.num_ranks > MAX_RANKS:
        return None, {"error": f"the CUDA engine serves {MAX_RANKS} ranks at most"}
    if not torch.cuda.is_available():
        return None, {"error": "torch finds no CUDA device in this process"}
    path = find_library()
    if path is None:
        return None, {"error": "the CUDA engine is not built: run python -m ithaka.comm_ext.build"}
    try:
        share = CudaShare.create(path, device, max_bytes)
        return share, share.card(calibration)
    except (CudaCallError, OSError) as error:
        return None, {"error": str(error)}


def _raise_obstacle(reason: str | None) -> None:
    if reason is not None:
        raise UlyssesBackendError(UlyssesErrorCode.BACKEND_UNAVAILABLE, reason)
