"""One child's life: spawn, handshake, heartbeats, and the ladder down: asked, terminated, killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from ithaka.configs.schema import SupervisorSection
from ithaka.server.vitals import Verdict, Vitals
from ithaka.workers import contract
from ithaka.workers.child_socket import ChildSocket, close_fds
from ithaka.workers.stages.contract import FramesDigested
from ithaka.workers.wire import Message, WireError

_MAX_OUTBOX = 4096
"""Commands that a child may leave unread beyond its socket's buffer; a child this far behind is taken for dead."""
_MAX_REPORTS_PER_TURN = 256
_CLOCK_GRAIN_S = 0.001
"""A timer may fire a little early."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start. ``fds`` ride beside ``configure`` and belong to the child from here on."""

    name: str
    entry: str
    configure: contract.ConfigureRank | contract.ConfigureEncode
    fds: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()
    obeys_shutdown: bool = True
    """False for a child that hears of the end from another one: it is waited for, not asked."""


class ChildState(StrEnum):
    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """``code``: "exited", "silent", "hung", "not_ready", "protocol", "congested", or that of a WorkerFailed."""

    child: str
    code: str
    message: str


class ChildProcess:
    """Callbacks come on the event loop; ``on_failed`` at most once, never after ``stop`` began.

    Belongs to the loop's thread. Start it from a thread that lives as long as the process (see ``guard_parent``).
    """

    def __init__(
        self,
        spec: ChildSpec,
        limits: SupervisorSection,
        *,
        on_ready: Callable[[ChildProcess, contract.Report], None],
        on_report: Callable[[ChildProcess, contract.Report], None],
        on_failed: Callable[[ChildProcess, ChildFailure], None],
    ) -> None:
        self.name = spec.name
        self._spec = spec
        self._limits = limits
        self._on_ready, self._on_report, self._on_failed = on_ready, on_report, on_failed
        self._fds = list(spec.fds)
        self._state = ChildState.NEW
        self._loop = asyncio.get_running_loop()
        self._socket: ChildSocket | None = None
        self._socket_fd = -1
        self._outbox: deque[tuple[Message, list[int]]] = deque()
        self._vitals = Vitals.born(self._loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pidfd = -1
        self._reaper: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id, or -1 before the spawn."""
        return self._process.pid if self._process is not None else -1

    @property
    def is_ready(self) -> bool:
        return self._state is ChildState.READY

    async def spawn(self) -> None:
        """Start the process and tell it who it is. Raises OSError; ``on_ready`` or ``on_failed`` follows otherwise."""
        ours, theirs = ChildSocket.pair()
        self._socket, self._socket_fd = ours, ours.fileno()
        # Not closed as a ChildSocket: that would end the connection for the child as well.
        inherited_fd = theirs.detach()
        try:
            ours.send_nowait(self._spec.configure, self._fds)
            self._process = await asyncio.create_subprocess_exec(
                *self._command(inherited_fd),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
                pass_fds=(inherited_fd,),
            )
        except BaseException:
            # Also when the start is cancelled: asyncio has killed the process then.
            self._release()
            raise
        finally:
            os.close(inherited_fd)
            self.drop_fds()
        self._pidfd = _open_pidfd(self._process.pid)
        self._state = ChildState.STARTING
        self._loop.add_reader(self._socket_fd, self._read)
        self._timer = self._loop.call_later(self._limits.ready_timeout_s, self._not_ready)
        self._reaper = asyncio.create_task(self._reap(self._process), name=f"reap {self.name}")

    def drop_fds(self) -> None:
        """Close the descriptors of the spec that were not handed over. Idempotent."""
        close_fds(self._fds)
        self._fds = []

    def send(self, command: contract.Command, fds: Sequence[int] = ()) -> None:
        """Never waits; the caller keeps its ``fds``. A child that is gone hears nothing. Raises WireError."""
        if self._socket is None or self._state is ChildState.FAILED:
            return
        try:
            if not self._outbox:
                self._socket.send_nowait(command, fds)
                return
        except BlockingIOError:
            self._loop.add_writer(self._socket_fd, self._flush)
        except OSError:
            return  # The reaper is about to say so.
        self._outbox.append((command, [os.dup(fd) for fd in fds]))
        if len(self._outbox) > _MAX_OUTBOX:
            self._fail("congested", f"left {_MAX_OUTBOX} commands unread")

    def kill(self) -> None:
        """SIGKILL, now. Idempotent."""
        self._signal(signal.SIGKILL)

    async def stop(self, *, deadline_s: float) -> None:
        """Down the ladder, each rung at most ``stop_timeout_s``; the first two end at ``deadline_s`` (of the loop's clock).

        A child that never became ready, or failed, is not asked. Returns when the process is gone, or can't be killed (the
        kernel holds it). Idempotent.
        """
        was_ready = self._state is ChildState.READY
        self._state = ChildState.STOPPING
        self._cancel_timer()
        if was_ready:
            if self._spec.obeys_shutdown:
                self.send(contract.Shutdown())
            if await self._is_gone_by(deadline_s):
                return
            _log.warning("child.ignored_shutdown", child=self.name)
        self._signal(signal.SIGTERM)
        if await self._is_gone_by(deadline_s):
            return
        self.kill()
        if not await self._is_gone_by(math.inf):
            _log.error("child.outlives_kill", child=self.name, pid=self.pid)

    async def wait(self) -> None:
        """Until the process is gone and reaped."""
        if self._process is not None:
            await self._gone.wait()

    # -- what the child says -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._socket is None:
            return
        for _ in range(_MAX_REPORTS_PER_TURN):
            try:
                received = self._socket.receive_nowait()
            except BlockingIOError:
                return
            except (WireError, OSError) as error:
                self._loop.remove_reader(self._socket_fd)
                self._fail("protocol", str(error))
                return
            if received is None:
                self._loop.remove_reader(self._socket_fd)
                return
            message, fds = received
            close_fds(fds)
            self._hear(message)

    def _hear(self, message: Message) -> None:
        match message:
            case contract.Heartbeat(progress=progress, busy=busy):
                self._vitals.beat(self._loop.time(), progress=progress, busy=busy)
            case contract.WorkerReady() | contract.EncodeReady():
                if self._state is ChildState.STARTING:
                    self._state = ChildState.READY
                    self._vitals = Vitals.born(self._loop.time())
                    self._cancel_timer()
                    self._watch()
                    self._on_ready(self, message)
            case contract.WorkerFailed():
                blamed = f" (rank {message.culprit_rank} is to blame)" if message.culprit_rank not in (-1, message.rank) else ""
                self._fail(message.code, message.message + blamed)
            case (
                contract.SessionStarted()
                | contract.StepCompleted()
                | contract.SessionEnded()
                | contract.EncoderOpened()
                | contract.EncoderFailed()
                | contract.FramesDrained()
                | FramesDigested()
            ):
                self._on_report(self, message)
            case _:
                self._fail("protocol", f"sent {type(message).__name__}, which is no report")

    def _flush(self) -> None:
        while self._outbox and self._socket is not None:
            command, fds = self._outbox[0]
            try:
                self._socket.send_nowait(command, fds)
            except BlockingIOError:
                return
            except OSError:
                break
            self._outbox.popleft()
            close_fds(fds)
        self._drop_outbox()

    # -- how it is judged ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look again when there may be something to see, not at every heartbeat."""
        limits = self._limits
        due_s = self._vitals.due_s(silence_s=limits.heartbeat_timeout_s, stall_s=limits.step_timeout_s)
        self._timer = self._loop.call_at(due_s + _CLOCK_GRAIN_S, self._judge)

    def _judge(self) -> None:
        # This loop may have been the late one: what lies in the socket counts before the clock does.
        self._read()
        if self._state is not ChildState.READY:
            return
        limits = self._limits
        verdict = self._vitals.verdict(self._loop.time(), silence_s=limits.heartbeat_timeout_s, stall_s=limits.step_timeout_s)
        if verdict is Verdict.SILENT:
            self._fail("silent", f"gave no sign of life for {limits.heartbeat_timeout_s:g} s")
        elif verdict is Verdict.HUNG:
            self._fail("hung", f"made no progress in a step for {limits.step_timeout_s:g} s")
        else:
            self._watch()

    def _not_ready(self) -> None:
        self._read()
        if self._state is ChildState.STARTING:
            self._fail("not_ready", f"was not ready after {self._limits.ready_timeout_s:g} s (supervisor.ready_timeout_s)")

    def _fail(self, code: str, message: str) -> None:
        if self._state not in (ChildState.STARTING, ChildState.READY):
            return
        # Of a child that never came up, who started it tells.
        level = logging.WARNING if self._state is ChildState.READY else logging.DEBUG
        self._state = ChildState.FAILED
        self._cancel_timer()
        self.kill()
        _log.log(level, "child.failed", child=self.name, code=code, reason=message)
        self._on_failed(self, ChildFailure(self.name, code, message))

    # -- the process ---------------------------------------------------------------------------------------------------

    def _command(self, control_fd: int) -> list[str]:
        faults = [argument for fault in self._spec.faults for argument in ("--fault", fault)]
        # -P: the working directory is no place to import from.
        entry = [sys.executable, "-P", "-m", self._spec.entry]
        return [*entry, "--control-fd", str(control_fd), "--parent-pid", str(os.getpid()), *faults]

    async def _reap(self, process: asyncio.subprocess.Process) -> None:
        return_code = await process.wait()
        self._read()  # Its last words, e.g. WorkerFailed.
        self._fail("exited", _exit_text(return_code))
        self._release()
        self._gone.set()

    async def _is_gone_by(self, deadline_s: float) -> bool:
        timeout_s = min(self._limits.stop_timeout_s, deadline_s - self._loop.time())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), max(0.0, timeout_s))
        return self._process is None or self._gone.is_set()

    def _signal(self, number: signal.Signals) -> None:
        # By pidfd: a pid that was reaped may be somebody else's by now.
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _release(self) -> None:
        self._cancel_timer()
        self._drop_outbox()
        if self._socket is not None:
            self._loop.remove_reader(self._socket_fd)
            self._socket.close()
            self._socket = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _drop_outbox(self) -> None:
        self._loop.remove_writer(self._socket_fd)
        for _, fds in self._outbox:
            close_fds(fds)
        self._outbox.clear()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _open_pidfd(pid: int) -> int:
    # -1 when it is dead and reaped already: there is nobody to signal then.
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _exit_text(return_code: int) -> str:
    if return_code < 0:
        return f"was killed by {signal.Signals(-return_code).name}"
    return f"exited with status {return_code}; its log says why"
