"""The encode process: commands and frames in on the main thread, one thread a session, packets out."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable

import structlog

from ithaka.comm_ext.channel.base import LayoutError
from ithaka.workers import contract
from ithaka.workers.child_socket import ChildSocket, close_fds
from ithaka.workers.encoding.encoder import StreamSettings
from ithaka.workers.encoding.errors import EncodeError, EncoderExistsError, EncoderOpenError
from ithaka.workers.encoding.frame_channel import FrameChannel
from ithaka.workers.encoding.heartbeats import Heartbeats
from ithaka.workers.encoding.packet_channel import PacketChannel
from ithaka.workers.encoding.session import EncodeSession
from ithaka.workers.fault import FaultPoints
from ithaka.workers.wire import WireError

_log = structlog.get_logger(__name__)


class EncodeProcess:
    """Everything that the process holds. ``run`` returns after Shutdown; without a server the process ends on the spot."""

    def __init__(self, control: ChildSocket, configure: contract.ConfigureEncode, faults: FaultPoints) -> None:
        self._control = control
        self._configure = configure
        self._faults = faults
        self._heartbeats = Heartbeats(control, configure.heartbeat_interval_s)
        self._selector = selectors.DefaultSelector()
        self._drained_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._packets: PacketChannel | None = None
        self._frames: dict[int, FrameChannel] = {}
        self._sessions: dict[str, EncodeSession] = {}
        self._ending: list[EncodeSession] = []
        self._num_unknown = 0
        self._is_stopping = False

    def run(self) -> int:
        """Exit status 0 after Shutdown."""
        control_fd = self._control.fileno()
        self._watch(control_fd, self._read_commands)
        self._watch(self._drained_fd, self._report_drained)
        self._report(contract.EncodeReady())
        self._heartbeats.start()
        try:
            while not self._is_stopping:
                # Commands first: what the server sent before a frame was published holds for that frame.
                for key, _ in sorted(self._selector.select(), key=lambda event: event[0].fd != control_fd):
                    act: Callable[[], None] = key.data
                    act()
            self._stop()
        except Exception:
            _log.exception("encode.failed")
            # As when the server is gone: nothing here can be waited for.
            os._exit(1)
        return 0

    def _read_commands(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while not self._is_stopping:
                received = self._control.receive_nowait()
                if received is None:
                    # Threads may be deep in a frame or wait for a packet slot that nobody will free.
                    os._exit(1)
                self._obey(*received)

    def _obey(self, command: object, fds: list[int]) -> None:
        match command:
            case contract.OpenEncoder():
                self._open_encoder(command)
            case contract.RequestKeyFrame(session_id, codec):
                if session := self._sessions.get(session_id):
                    session.request_key_frame(codec)
            case contract.OpenVp8(session_id, bits_per_s):
                if session := self._sessions.get(session_id):
                    session.vp8.open(bits_per_s)
            case contract.CloseVp8(session_id):
                if session := self._sessions.get(session_id):
                    session.vp8.close()
            case contract.SetBitrate(session_id, bits_per_s):
                if session := self._sessions.get(session_id):
                    session.set_bitrate(bits_per_s)
            case contract.CloseEncoder(session_id):
                if session := self._sessions.pop(session_id, None):
                    session.close()
                    self._ending = [*(old for old in self._ending if old.is_alive), session]
            case contract.AttachPackets(channel_id):
                self._attach_packets(channel_id, fds)
            case contract.AttachFrames(channel_id):
                self._attach_frames(channel_id, fds)
            case contract.DetachFrames(channel_id):
                self._detach_frames(channel_id)
            case contract.Shutdown():
                self._is_stopping = True
            case _:
                close_fds(fds)
                raise WireError(f"encode does not take {type(command).__name__}")

    def _attach_packets(self, channel_id: int, fds: list[int]) -> None:
        if self._packets is not None:
            close_fds(fds)
            raise WireError(f"packet channel {channel_id}: this process has one already")
        self._packets = PacketChannel(fds)
        if self._packets.channel_id != channel_id:
            raise WireError(f"packet channel {channel_id}: the descriptors are of {self._packets.channel_id}")

    def _attach_frames(self, channel_id: int, fds: list[int]) -> None:
        channel = FrameChannel(fds, self._wake)
        if channel.channel_id != channel_id or channel_id in self._frames:
            channel.close()
            raise WireError(f"frame channel {channel_id}: attached before, or the descriptors are of {channel.channel_id}")
        self._frames[channel_id] = channel
        self._watch(channel.ready_fd(), lambda: self._take_frames(channel))

    def _detach_frames(self, channel_id: int) -> None:
        channel = self._frames.get(channel_id)
        if channel is None:
            raise WireError(f"frame channel {channel_id} is not attached")
        channel.detach()
        self._take_frames(channel)

    def _open_encoder(self, command: contract.OpenEncoder) -> None:
        try:
            if command.session_id in self._sessions:
                raise EncoderExistsError("this session has an encoder already")
            if self._packets is None:
                raise EncoderOpenError("no packet channel is attached yet")
        except EncodeError as error:
            self._report(contract.EncoderFailed(command.session_id, error.code, str(error)))
            return
        settings = StreamSettings(
            width=command.width,
            height=command.height,
            fps=command.fps,
            pixels=command.pixels,
            crf=self._configure.crf,
            preset=self._configure.live_preset if command.bits_per_s else self._configure.preset,
            key_frame_interval_s=self._configure.key_frame_interval_s,
            bits_per_s=command.bits_per_s,
        )
        session = EncodeSession(
            command.session_id,
            settings,
            self._packets,
            self._report,
            self._heartbeats,
            self._faults,
            max_waiting_frames=command.max_waiting_frames,
        )
        self._sessions[command.session_id] = session
        session.start()

    def _take_frames(self, channel: FrameChannel) -> None:
        if channel.is_exhausted:
            return
        channel.clear_ready()
        while True:
            try:
                task = channel.take()
            except (LayoutError, WireError) as error:
                _log.error("encode.frame_unreadable", channel=channel.channel_id, error=str(error))
                continue
            if task is None:
                break
            self._faults.reach("encode.taken")
            session = self._sessions.get(task.header.session_id)
            if session is None:
                self._num_unknown += 1
                _log.debug("encode.frame_unknown", session=task.header.session_id, total=self._num_unknown)
                task.finish(is_published=False)
            else:
                session.submit(task)
        if channel.is_exhausted:
            self._selector.unregister(channel.ready_fd())

    def _report_drained(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._drained_fd)
        for channel in [channel for channel in self._frames.values() if channel.is_drained]:
            del self._frames[channel.channel_id]
            channel.close()
            self._report(contract.FramesDrained(channel.channel_id, channel.last_seqs))

    def _stop(self) -> None:
        for channel in list(self._frames.values()):
            self._take_frames(channel)
        sessions = [*self._sessions.values(), *self._ending]
        for session in sessions:
            session.finish()
        for session in sessions:
            session.join()
        if self._packets is not None:
            self._packets.close()
        for channel in self._frames.values():
            channel.close()
        self._heartbeats.stop()
        self._control.close()

    def _watch(self, fd: int, act: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, act)

    def _wake(self) -> None:
        os.eventfd_write(self._drained_fd, 1)

    def _report(self, report: contract.Report) -> None:
        # The main thread ends the process when the server is gone.
        with contextlib.suppress(ConnectionError):
            self._control.send(report)
