"""The encode process as the engine uses it, and the channel of packets that comes from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import structlog

from ithaka.comm_ext.channel.base import ChannelClosedError, ChannelError, Delivery
from ithaka.comm_ext.channel.host_shm import HostChannel, HostConsumer, clear_event
from ithaka.configs.schema import EncodeSection, LogSection, SupervisorSection
from ithaka.server.child_process import ChildFailure, ChildProcess, ChildSpec
from ithaka.server.engine_client import PacketArrived, SessionRequest
from ithaka.server.live_rate import LiveRates
from ithaka.workers import contract, wire

NAME = "encode-0"
_NUM_PACKET_SLOTS = 32
_PACKET_SLOT_BYTES = 16 * 1024 * 1024
"""Room for the largest access unit there is; pages that no packet touched take no memory."""

_log = structlog.get_logger()


class EncodeService:
    """A tenant of ``upkeep``. Packets and reports of sessions go to the callbacks, packets always first.

    Packets are copied out and their slots released at once, so that encode never waits for a client.
    """

    def __init__(
        self,
        encode: EncodeSection,
        limits: SupervisorSection,
        log: LogSection,
        channel_ids: Iterator[int],
        *,
        on_packet: Callable[[PacketArrived], None],
        on_session_report: Callable[[contract.EncoderOpened | contract.EncoderFailed], None],
        on_change: Callable[[ChildFailure | None], None],
    ) -> None:
        """``on_change`` gets None when the process is up, what went wrong when it is down."""
        self.name = NAME
        self.message = ""
        """Why it is not up, for a human."""
        self.gave_up = False
        self.next_faults: tuple[str, ...] = ()
        """What the next start is to suffer; for tests."""
        self._encode, self._limits, self._log_section = encode, limits, log
        self._channel_ids = channel_ids
        self._on_packet, self._on_session_report, self._on_change = on_packet, on_session_report, on_change
        self._child: ChildProcess | None = None
        self._channel: HostChannel | None = None
        self._consumer: HostConsumer | None = None
        self._rates = LiveRates(encode)
        self._drains: dict[int, asyncio.Future[None]] = {}

    @property
    def is_up(self) -> bool:
        return self._child is not None

    # -- what the engine asks ------------------------------------------------------------------------------------------

    def attach_frames(self, channel: HostChannel) -> None:
        self._send(contract.AttachFrames(channel.channel_id), channel.describe())

    async def drain_frames(self, channel: HostChannel, timeout_s: float) -> None:
        """Returns when every frame of ``channel``, whose producer is closed, has arrived as a packet; or at the timeout, or
        when encode is lost.
        """
        if self._child is None:
            return
        drained = self._drains[channel.channel_id] = asyncio.get_running_loop().create_future()
        self._send(contract.DetachFrames(channel.channel_id))
        done, _ = await asyncio.wait({drained}, timeout=timeout_s)
        del self._drains[channel.channel_id]
        if not done:
            _log.warning("encode.drain_timed_out", channel=channel.channel_id)

    def open_session(self, request: SessionRequest, description: contract.ModelDescription) -> None:
        is_live = request.delivery == "live"
        bits_per_s = self._rates.open(request.session_id) if is_live and request.pixels == "lossy" else 0
        self._send(
            contract.OpenEncoder(
                request.session_id,
                description.width,
                description.height,
                description.fps,
                request.pixels,
                bits_per_s,
                max_waiting_frames=description.chunk_frames if is_live else 0,
            )
        )

    def estimate_bitrate(self, session_id: str, bits_per_s: int) -> None:
        """Follow, where the session has a rate; see LiveRates."""
        changed = self._rates.estimate(session_id, bits_per_s)
        if changed is not None:
            self._send(contract.SetBitrate(session_id, changed))

    def request_key_frame(self, session_id: str, codec: contract.Codec) -> None:
        self._send(contract.RequestKeyFrame(session_id, codec))

    def open_vp8(self, session_id: str) -> None:
        self._send(contract.OpenVp8(session_id, self._encode.live_bits_per_s))

    def close_vp8(self, session_id: str) -> None:
        self._send(contract.CloseVp8(session_id))

    def close_session(self, session_id: str) -> None:
        self._rates.close(session_id)
        self._send(contract.CloseEncoder(session_id))

    # -- tenant --------------------------------------------------------------------------------------------------------

    def specs(self) -> tuple[ChildSpec, ...]:
        faults, self.next_faults = self.next_faults, ()
        configure = contract.ConfigureEncode(
            name=NAME,
            crf=self._encode.crf,
            preset=self._encode.preset,
            live_preset=self._encode.live_preset,
            key_frame_interval_s=self._encode.key_frame_interval_s,
            heartbeat_interval_s=self._limits.heartbeat_interval_s,
            log_level=self._log_section.level,
            log_format=self._log_section.format,
        )
        return (ChildSpec(NAME, contract.ENCODE_ENTRY, configure, faults=faults),)

    def on_up(self, children: tuple[ChildProcess, ...], _reports: tuple[contract.Report, ...]) -> None:
        self._child = children[0]
        self._channel = HostChannel.create(next(self._channel_ids), _NUM_PACKET_SLOTS, _PACKET_SLOT_BYTES, 1)
        self._consumer = self._channel.open_consumer(0)
        self._send(contract.AttachPackets(self._channel.channel_id), self._channel.describe())
        asyncio.get_running_loop().add_reader(self._consumer.ready_fd(), self._take_packets)
        self.message = ""
        self._on_change(None)

    def on_report(self, _child: ChildProcess, report: contract.Report) -> None:
        # What encode says of a session, it says after that session's packets.
        self._take_packets()
        match report:
            case contract.EncoderOpened() | contract.EncoderFailed():
                self._on_session_report(report)
            case contract.FramesDrained(channel_id=channel_id):
                if drained := self._drains.get(channel_id):
                    _resolve(drained)

    async def on_down(self, failure: ChildFailure) -> None:
        self._child = None
        self.message = f"the encode process {failure.message}"
        try:
            self._take_packets()
        finally:
            self.close()
            self._on_change(failure)

    def on_failed_start(self, failure: ChildFailure, *, gave_up: bool) -> None:
        self.message = f"the encode process {failure.message}"
        self.gave_up = gave_up
        self._on_change(failure)

    def close(self) -> None:
        """Let go of the packet channel, and of those who wait. Idempotent."""
        self._child = None
        if self._consumer is not None:
            asyncio.get_running_loop().remove_reader(self._consumer.ready_fd())
            self._consumer.close()
            self._consumer = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for drained in self._drains.values():
            _resolve(drained)

    # -- packets -------------------------------------------------------------------------------------------------------

    def _take_packets(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        clear_event(consumer.ready_fd())
        # A listener may stop the engine from within, and the consumer with it.
        while self._consumer is consumer:
            try:
                delivery = consumer.take()
                if delivery is None:
                    return
                packet = _copied(delivery)
                consumer.release(delivery)
            except ChannelClosedError:
                asyncio.get_running_loop().remove_reader(consumer.ready_fd())
                return
            except (ChannelError, wire.WireError) as error:
                _log.error("packet.unreadable", reason=str(error))
                continue
            self._on_packet(packet)

    def _send(self, command: contract.Command, fds: Sequence[int] = ()) -> None:
        if self._child is not None:
            self._child.send(command, fds)


def _copied(delivery: Delivery) -> PacketArrived:
    header = wire.decode_as(contract.PacketHeader, delivery.message.header)
    (layout,) = delivery.message.tensors
    start = layout.offset_bytes
    return PacketArrived(header, bytes(delivery.data[start : start + layout.shape[0]]))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
