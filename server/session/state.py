"""The life of a session: one table, one pure function.

``advance`` takes what the session is and what happened, and returns what it is now and what has to be done. Every pair of
state and event stands in the table: it changes something, is ignored because the event may come late, or raises because a
correct caller can't bring it about. Three things follow from the state and are added to every change: its timeouts, the
announcement, and the closing effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ithaka.server.session.events import (
    AdmissionFailed,
    Admitted,
    AnnounceState,
    ArmTimeout,
    CancelTimeout,
    CloseSession,
    ContinueGeneration,
    ControllerAttached,
    ControllerLost,
    ControllerPhase,
    ControllerResumed,
    DropController,
    Effect,
    EndEngine,
    EndRequested,
    EngineEnded,
    EnginePhase,
    EngineStarted,
    Event,
    FinReceived,
    FinVerdict,
    ForceRequested,
    HoldGeneration,
    PauseRequested,
    PlayRequested,
    ReleaseKeys,
    SendEos,
    SendHello,
    StartEngine,
    StartGeneration,
    State,
    TimedOut,
    Timeout,
)


@dataclass(frozen=True, slots=True)
class SessionData:
    """All that decides what may happen next. ``delivered`` is None until the end."""

    state: State = State.QUEUED
    engine: EnginePhase = EnginePhase.ABSENT
    controller: ControllerPhase = ControllerPhase.ABSENT
    paused: bool = False
    failed: bool = False
    reason: str = ""
    retryable: bool = False
    delivered: bool | None = None


class IllegalEventError(Exception):
    """A fault of the caller, never of a client."""

    def __init__(self, data: SessionData, event: Event) -> None:
        super().__init__(
            f"{type(event).__name__} can't happen to a session that is {data.state} "
            f"(engine {data.engine}, controller {data.controller}): {event}"
        )


Step = tuple[SessionData, tuple[Effect, ...]]
Handler = Callable[[SessionData, Event], Step]

TERMINAL = frozenset({State.CLOSED, State.FAILED})
TIMEOUTS: dict[State, frozenset[Timeout]] = {
    State.QUEUED: frozenset({Timeout.QUEUE}),
    State.ADMITTED: frozenset({Timeout.CONNECT, Timeout.DURATION}),
    State.CONNECTING: frozenset({Timeout.CONNECT, Timeout.DURATION}),
    State.STREAMING: frozenset({Timeout.DURATION}),
    State.PAUSED: frozenset({Timeout.DURATION}),
    State.DETACHED: frozenset({Timeout.DETACH, Timeout.DURATION}),
    State.DRAINING: frozenset({Timeout.DRAIN}),
    State.CLOSED: frozenset(),
    State.FAILED: frozenset(),
}

CLOSE_CODES = {"server_stopping": 1001, "fin_early": 1008}
CLOSE_DONE, CLOSE_FAILED, CLOSE_TRY_AGAIN = 1000, 1011, 1012


def open_session() -> Step:
    """A session that has just been accepted. It is queued, if only for a moment."""
    return SessionData(), (ArmTimeout(Timeout.QUEUE), AnnounceState())


def advance(data: SessionData, event: Event) -> Step:
    """What the session is after ``event``, and what has to be done, in order.

    Raises IllegalEventError, naming event and state, for a pair that a correct caller can't bring about.
    """
    changed, effects = TABLE[data.state][type(event)](data, event)
    before, now = TIMEOUTS[data.state], TIMEOUTS[changed.state]
    timers: tuple[Effect, ...] = (
        *(CancelTimeout(timeout) for timeout in sorted(before - now)),
        *(ArmTimeout(timeout) for timeout in sorted(now - before)),
    )
    announced: tuple[Effect, ...] = (AnnounceState(),) if changed.state is not data.state else ()
    ended: tuple[Effect, ...] = ()
    if changed.state in TERMINAL and data.state not in TERMINAL:
        ended = (CloseSession(_close_code(changed)),)
    return changed, (*effects, *timers, *announced, *ended)


def _close_code(data: SessionData) -> int:
    if data.reason in CLOSE_CODES:
        return CLOSE_CODES[data.reason]
    if data.state is State.FAILED:
        return CLOSE_TRY_AGAIN if data.retryable else CLOSE_FAILED
    return CLOSE_DONE


# -- what the table is made of -----------------------------------------------------------------------------------------


def _illegal(data: SessionData, event: Event) -> Step:
    raise IllegalEventError(data, event)


def _ignore(data: SessionData, event: Event) -> Step:
    return data, ()


def _close(data: SessionData, reason: str, *, retryable: bool = False, failed: bool = False, delivered: bool = False) -> Step:
    """End now, with whatever the engine still holds given back."""
    state = State.FAILED if failed else State.CLOSED
    effects: tuple[Effect, ...] = (EndEngine(discard=True),) if _engine_may_need_end(data) else ()
    return replace(data, state=state, reason=reason, retryable=retryable, failed=failed, delivered=delivered), effects


def _engine_may_need_end(data: SessionData) -> bool:
    """Draining has asked already."""
    return data.engine in (EnginePhase.STARTING, EnginePhase.STARTED) and data.state is not State.DRAINING


def _drain(data: SessionData, reason: str, retryable: bool) -> Step:
    return replace(data, state=State.DRAINING, reason=reason, retryable=retryable), (HoldGeneration(), EndEngine())


def _admit(data: SessionData, event: Event) -> Step:
    return replace(data, state=State.ADMITTED, engine=EnginePhase.STARTING), (StartEngine(),)


def _fail_admission(data: SessionData, event: Event) -> Step:
    assert isinstance(event, AdmissionFailed)
    return _close(data, event.code, retryable=event.retryable, failed=True)


def _engine_started(data: SessionData, event: Event) -> Step:
    hello: tuple[Effect, ...] = (SendHello(),) if data.controller is ControllerPhase.ATTACHED else ()
    return replace(data, state=State.CONNECTING, engine=EnginePhase.STARTED), hello


def _engine_ended_before_streaming(data: SessionData, event: Event) -> Step:
    assert isinstance(event, EngineEnded)
    ended = replace(data, engine=EnginePhase.ENDED)
    return _close(ended, event.code, retryable=event.retryable, failed=event.is_failure)


def _engine_ended_while_live(data: SessionData, event: Event) -> Step:
    assert isinstance(event, EngineEnded)
    draining = replace(
        data,
        state=State.DRAINING,
        engine=EnginePhase.ENDED,
        reason=event.code,
        retryable=event.retryable,
        failed=event.is_failure,
    )
    return draining, (HoldGeneration(), SendEos())


def _engine_ended_while_draining(data: SessionData, event: Event) -> Step:
    """The deadline for ``fin`` counts from here. A fault on the way out is the better reason."""
    assert isinstance(event, EngineEnded)
    if data.engine is EnginePhase.ENDED:
        return _illegal(data, event)
    ended = replace(data, engine=EnginePhase.ENDED)
    if event.is_failure:
        ended = replace(ended, reason=event.code, retryable=event.retryable, failed=True)
    return ended, (SendEos(), ArmTimeout(Timeout.DRAIN))


def _attach(data: SessionData, event: Event) -> Step:
    if data.controller is not ControllerPhase.ABSENT:
        return _illegal(data, event)
    hello: tuple[Effect, ...] = (SendHello(),) if data.engine in (EnginePhase.STARTED, EnginePhase.ENDED) else ()
    return replace(data, controller=ControllerPhase.ATTACHED), hello


def _resume_first(data: SessionData, event: Event) -> Step:
    if data.controller is not ControllerPhase.ATTACHED:
        return _illegal(data, event)
    return replace(data, state=State.STREAMING, controller=ControllerPhase.RESUMED), (StartGeneration(),)


def _resume_again(data: SessionData, event: Event) -> Step:
    if data.controller is not ControllerPhase.ATTACHED:
        return _illegal(data, event)
    resumed = replace(data, controller=ControllerPhase.RESUMED)
    if data.state is State.DETACHED:
        resumed = replace(resumed, state=State.PAUSED if data.paused else State.STREAMING)
    return resumed, ()


def _lose(data: SessionData, event: Event) -> Step:
    return replace(data, controller=ControllerPhase.ABSENT), ()


def _lose_live(data: SessionData, event: Event) -> Step:
    return replace(data, state=State.DETACHED, controller=ControllerPhase.ABSENT), (ReleaseKeys(),)


def _pause(data: SessionData, event: Event) -> Step:
    return replace(data, state=State.PAUSED, paused=True), (HoldGeneration(),)


def _play(data: SessionData, event: Event) -> Step:
    return replace(data, state=State.STREAMING, paused=False), (ContinueGeneration(),)


def _end_at_once(data: SessionData, event: Event) -> Step:
    """Nothing was generated, so there is nothing to deliver."""
    assert isinstance(event, EndRequested)
    return _close(data, event.reason, retryable=event.retryable)


def _end_by_draining(data: SessionData, event: Event) -> Step:
    assert isinstance(event, EndRequested)
    return _drain(data, event.reason, event.retryable)


def _force(data: SessionData, event: Event) -> Step:
    assert isinstance(event, ForceRequested)
    return _close(data, event.reason, retryable=event.retryable, failed=event.is_failure)


def _fin_while_live(data: SessionData, event: Event) -> Step:
    assert isinstance(event, FinReceived)
    if event.verdict is not FinVerdict.EARLY:
        return _illegal(data, event)
    return _close(data, "fin_early")


def _fin_while_draining(data: SessionData, event: Event) -> Step:
    assert isinstance(event, FinReceived)
    if data.controller is not ControllerPhase.RESUMED:
        return _illegal(data, event)
    if event.verdict is FinVerdict.EARLY:
        return _close(data, "fin_early")
    return _finish(data, delivered=event.verdict is FinVerdict.MATCH)


def _finish(data: SessionData, *, delivered: bool) -> Step:
    return _close(data, data.reason, retryable=data.retryable, failed=data.failed, delivered=delivered)


def _time_out(data: SessionData, event: Event) -> Step:
    """A timeout that is not the state's own was on its way when it was cancelled."""
    assert isinstance(event, TimedOut)
    live = data.state in (State.STREAMING, State.PAUSED)
    if event.timeout is Timeout.ACK and live:
        return replace(data, state=State.DETACHED, controller=ControllerPhase.ABSENT), (
            ReleaseKeys(),
            DropController("ack_timeout"),
        )
    if event.timeout not in TIMEOUTS[data.state]:
        return data, ()
    match event.timeout:
        case Timeout.QUEUE:
            return _close(data, "queue_timeout", retryable=True)
        case Timeout.CONNECT if data.state is State.ADMITTED:
            return _close(data, "start_timeout", retryable=True, failed=True)
        case Timeout.CONNECT:
            return _close(data, "connect_timeout", retryable=True)
        case Timeout.DETACH:
            return _close(data, "detach_timeout", retryable=True)
        case Timeout.DRAIN if data.engine is EnginePhase.ENDED:
            return _finish(data, delivered=False)
        case Timeout.DRAIN:
            return _close(data, "end_timeout", retryable=True, failed=True)
        case Timeout.DURATION if live or data.state is State.DETACHED:
            return _drain(data, "max_duration", False)
        case _:
            return _close(data, "max_duration")


_NEVER: dict[type[Event], Handler] = {
    Admitted: _illegal,
    AdmissionFailed: _illegal,
    EngineStarted: _illegal,
    EngineEnded: _illegal,
    ControllerAttached: _attach,
    ControllerResumed: _illegal,
    ControllerLost: _lose,
    PauseRequested: _illegal,
    PlayRequested: _illegal,
    EndRequested: _end_at_once,
    ForceRequested: _force,
    FinReceived: _illegal,
    TimedOut: _time_out,
}
_LIVE: dict[type[Event], Handler] = {
    **_NEVER,
    EngineEnded: _engine_ended_while_live,
    ControllerAttached: _illegal,
    ControllerLost: _lose_live,
    EndRequested: _end_by_draining,
    FinReceived: _fin_while_live,
}
_OVER: dict[type[Event], Handler] = {
    **dict.fromkeys(_NEVER, _ignore),
    Admitted: _illegal,
    AdmissionFailed: _illegal,
    ControllerAttached: _illegal,
    ControllerResumed: _illegal,
}
TABLE: dict[State, dict[type[Event], Handler]] = {
    State.QUEUED: {**_NEVER, Admitted: _admit, AdmissionFailed: _fail_admission},
    State.ADMITTED: {**_NEVER, EngineStarted: _engine_started, EngineEnded: _engine_ended_before_streaming},
    State.CONNECTING: {**_NEVER, EngineEnded: _engine_ended_before_streaming, ControllerResumed: _resume_first},
    State.STREAMING: {**_LIVE, PauseRequested: _pause, PlayRequested: _ignore},
    State.PAUSED: {**_LIVE, PauseRequested: _ignore, PlayRequested: _play},
    State.DETACHED: {
        **_NEVER,
        EngineEnded: _engine_ended_while_live,
        ControllerResumed: _resume_again,
        EndRequested: _end_by_draining,
    },
    State.DRAINING: {
        **_NEVER,
        EngineEnded: _engine_ended_while_draining,
        ControllerResumed: _resume_again,
        PauseRequested: _ignore,
        PlayRequested: _ignore,
        EndRequested: _ignore,
        FinReceived: _fin_while_draining,
    },
    State.CLOSED: _OVER,
    State.FAILED: _OVER,
}
