"""What the ranks of a group do all day: the leader receives, plans, steps and reports; the others obey."""

from __future__ import annotations

import contextlib
import itertools
import select
import time
from dataclasses import dataclass

from ithaka.comm_ext.channel.host_shm import clear_event
from ithaka.workers import contract
from ithaka.workers.child_socket import ChildSocket, close_fds
from ithaka.workers.controls import PendingControls, absorb, take
from ithaka.workers.families.base import FamilyInputError, FamilySpec
from ithaka.workers.families.stages import Chunk
from ithaka.workers.fault import FaultPoints
from ithaka.workers.group import Group
from ithaka.workers.outlet import Outlet
from ithaka.workers.planning import SessionProgress, choose
from ithaka.workers.pulse import Pulse
from ithaka.workers.runner import Runner
from ithaka.workers.session_memory import SessionLimitError, SessionMemory
from ithaka.workers.stages.contract import LatentsHeader
from ithaka.workers.wire import WireError

_MAX_COMMANDS_PER_TURN = 1024
"""A flood of commands can't keep the leader from its work."""


@dataclass(slots=True)
class LeaderSession:
    """What the leader knows of a session besides its memory."""

    progress: SessionProgress
    pending: PendingControls
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a planned step went: a chunk, or nothing more, or a refusal."""

    step: contract.PlannedStep
    control_id: int
    chunk: Chunk | None
    step_ms: float
    refusal: FamilyInputError | None = None


class LeaderLoop:
    """Rank 0. Waits on the control socket and the outlet's room, nowhere else."""

    def __init__(
        self,
        *,
        control: ChildSocket,
        group: Group,
        spec: FamilySpec,
        memory: SessionMemory,
        runner: Runner,
        pulse: Pulse,
        faults: FaultPoints,
        outlet: Outlet,
    ) -> None:
        self._control = control
        self._group = group
        self._spec = spec
        self._memory = memory
        self._runner = runner
        self._pulse = pulse
        self._faults = faults
        self._outlet = outlet
        self._sessions: dict[str, LeaderSession] = {}
        """In the order of their last chunk, longest ago first."""
        self._num_plans = 0
        self._stopping = False

    def run(self) -> None:
        """Until Shutdown. Raises what breaks the group: a family's, communicator's or socket's error."""
        while not self._stopping:
            self._receive()
            plan = self._plan()
            if plan is None:
                continue
            outcome = self._step(plan)
            self._report(outcome)
        self._close()

    # -- receive -------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        for fd in self._outlet.wake_fds():
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(None if self._choose() is None else 0):
            if fd == self._control.fileno():
                self._take_commands()
            else:
                clear_event(fd)

    def _take_commands(self) -> None:
        for command, fds in itertools.islice(self._control.pending(), _MAX_COMMANDS_PER_TURN):
            self._faults.reach("rank.received")
            self._obey(command, fds)
            if self._stopping:
                return

    def _obey(self, command: object, fds: list[int]) -> None:
        match command:
            case contract.AttachFrames():
                self._outlet.attach(fds)
            case contract.StartSession():
                self._start(command)
            case contract.ApplyControl(session_id=session_id):
                if session := self._sessions.get(session_id):
                    session.pending = absorb(session.pending, command, self._spec.controls)
            case contract.GrantFrames(session_id=session_id, through_seq=through_seq):
                if session := self._sessions.get(session_id):
                    known = session.progress
                    session.progress = SessionProgress(session_id, known.generated, max(known.through_seq, through_seq))
            case contract.EndSession(session_id=session_id):
                if session_id in self._sessions:
                    self._end(session_id, "ended", "", discard=command.discard)
            case contract.Shutdown():
                self._stopping = True
            case _:
                close_fds(fds)
                raise WireError(f"a leader takes no {type(command).__name__}")

    def _start(self, command: contract.StartSession) -> None:
        session_id = command.session_id
        if self._memory.is_full:
            refusal = "the model holds as many sessions as max_sessions allows"
            self._control.send(contract.SessionEnded(session_id, 0, SessionLimitError.code, refusal))
            return
        # Opening may be collective, so the others hear of it first; they refuse what this rank refuses.
        order = contract.OpenOnRank(session_id, command.seed, command.prompt, command.options)
        self._group.tell(order)
        try:
            with self._pulse.busy():
                self._memory.open(session_id, seed=command.seed, prompt=command.prompt, options=command.options)
        except FamilyInputError as error:
            self._control.send(contract.SessionEnded(session_id, 0, error.code, str(error)))
            return
        self._outlet.open_session(order)
        self._sessions[session_id] = LeaderSession(SessionProgress(session_id), PendingControls())
        self._control.send(contract.SessionStarted(session_id))

    def _end(self, session_id: str, code: str, message: str, *, discard: bool = False) -> None:
        session = self._sessions.pop(session_id)
        self._outlet.close_session(session_id, session.chunk, discard=discard)
        self._group.tell(contract.CloseOnRank(session_id))
        self._memory.close(session_id)
        self._control.send(contract.SessionEnded(session_id, session.progress.generated, code, message))

    # -- plan ----------------------------------------------------------------------------------------------------------

    def _choose(self) -> str | None:
        return choose(
            [session.progress for session in self._sessions.values()],
            chunk_frames=self._spec.chunk_frames,
            free_slots=self._outlet.room_frames(),
        )

    def _plan(self) -> contract.StepPlan | None:
        session_id = None if self._stopping else self._choose()
        if session_id is None:
            return None
        session = self._sessions[session_id] = self._sessions.pop(session_id)
        controls, session.pending = take(session.pending)
        step = contract.PlannedStep(
            session_id,
            session.chunk,
            tuple(sorted(controls.held)),
            tuple(sorted(controls.tapped)),
            controls.pointer_dx,
            controls.pointer_dy,
            controls.prompt,
        )
        self._num_plans += 1
        plan = contract.StepPlan(self._num_plans, (step,))
        self._group.tell(plan)
        self._faults.reach("rank.planned")
        return plan

    # -- step ----------------------------------------------------------------------------------------------------------

    def _step(self, plan: contract.StepPlan) -> Outcome:
        (step,) = plan.steps
        control_id = self._sessions[step.session_id].pending.control_id
        started = time.monotonic()
        chunk, refusal = None, None
        try:
            chunk = self._runner.run(step)
        except FamilyInputError as error:
            refusal = error
        return Outcome(step, control_id, chunk, (time.monotonic() - started) * 1000, refusal)

    # -- report --------------------------------------------------------------------------------------------------------

    def _report(self, outcome: Outcome) -> None:
        session_id, chunk = outcome.step.session_id, outcome.chunk
        if outcome.refusal is not None:
            self._end(session_id, outcome.refusal.code, str(outcome.refusal))
        elif chunk is None:
            self._end(session_id, "finished", "")
        else:
            session = self._sessions[session_id]
            first_seq, last_seq = session.progress.generated + 1, session.progress.generated + chunk.num_frames
            header = LatentsHeader(session_id, outcome.step.chunk, first_seq, chunk.num_frames, outcome.control_id)
            self._outlet.publish(chunk, header)
            session.progress = SessionProgress(session_id, last_seq, session.progress.through_seq)
            session.chunk += 1
            self._control.send(
                contract.StepCompleted(session_id, outcome.step.chunk, last_seq, outcome.control_id, outcome.step_ms)
            )

    def _close(self) -> None:
        for session_id in list(self._sessions):
            self._end(session_id, "ended", "")
        self._group.tell(contract.StopRank())
        self._outlet.close()


class FollowerLoop:
    """Ranks 1 and up: do what the leader does, in its order."""

    def __init__(self, *, group: Group, memory: SessionMemory, runner: Runner, pulse: Pulse, faults: FaultPoints) -> None:
        self._group = group
        self._memory = memory
        self._runner = runner
        self._pulse = pulse
        self._faults = faults

    def run(self) -> None:
        """Until StopRank. Raises what breaks the group."""
        while True:
            order = self._group.next_order()
            self._faults.reach("rank.received")
            match order:
                case contract.OpenOnRank(session_id=session_id):
                    # Refused here as on the leader, which tells the client.
                    with contextlib.suppress(FamilyInputError), self._pulse.busy():
                        self._memory.open(session_id, seed=order.seed, prompt=order.prompt, options=order.options)
                case contract.StepPlan():
                    for step in order.steps:
                        with contextlib.suppress(FamilyInputError):
                            self._runner.run(step)
                case contract.CloseOnRank(session_id=session_id):
                    self._memory.close(session_id)
                case contract.StopRank():
                    return
