"""Which session runs next: fairness and grants, for any traffic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ithaka.workers.planning import SessionProgress, choose, may_run

names = st.integers(0, 5).map(lambda index: f"s{index}")


@st.composite
def waiting(draw: st.DrawFn) -> list[SessionProgress]:
    ids = draw(st.lists(names, unique=True))
    return [SessionProgress(name, draw(st.integers(0, 50)), draw(st.integers(0, 60))) for name in ids]


@given(waiting(), st.integers(1, 12), st.integers(0, 24))
def test_the_choice_lies_within_grant_and_slots(sessions: list[SessionProgress], chunk_frames: int, free_slots: int) -> None:
    chosen = choose(sessions, chunk_frames=chunk_frames, free_slots=free_slots)
    runnable = [session for session in sessions if may_run(session, chunk_frames)]
    if free_slots < chunk_frames or not runnable:
        assert chosen is None
    else:
        assert chosen == runnable[0].session_id
        assert runnable[0].generated + chunk_frames <= runnable[0].through_seq


@given(waiting(), st.integers(1, 4))
def test_a_session_that_may_not_run_costs_the_others_nothing(sessions: list[SessionProgress], chunk_frames: int) -> None:
    runnable = [session for session in sessions if may_run(session, chunk_frames)]
    assert choose(sessions, chunk_frames=chunk_frames, free_slots=chunk_frames) == choose(
        runnable, chunk_frames=chunk_frames, free_slots=chunk_frames
    )


@given(st.integers(1, 6), st.integers(1, 4), st.lists(st.integers(0, 5), max_size=60))
def test_no_session_starves(num_sessions: int, chunk_frames: int, grants: list[int]) -> None:
    """Served as the loop serves: whoever ran goes to the back. Between two chunks of one session that could have run all
    the time, each other one runs at most once.
    """
    order = [SessionProgress(f"s{index}") for index in range(num_sessions)]
    since_served = {session.session_id: 0 for session in order}
    for grant in grants:
        index = grant % num_sessions
        order[index] = SessionProgress(
            order[index].session_id, order[index].generated, order[index].through_seq + grant * chunk_frames
        )
        runnable = {session.session_id for session in order if may_run(session, chunk_frames)}
        chosen = choose(order, chunk_frames=chunk_frames, free_slots=chunk_frames)
        assert (chosen is None) == (not runnable)
        for name in since_served:
            since_served[name] = since_served[name] + 1 if name in runnable and name != chosen else 0
            assert since_served[name] < num_sessions
        if chosen is not None:
            at = next(index for index, session in enumerate(order) if session.session_id == chosen)
            ran = order.pop(at)
            order.append(SessionProgress(chosen, ran.generated + chunk_frames, ran.through_seq))


def test_a_grant_short_of_a_chunk_is_not_enough() -> None:
    assert not may_run(SessionProgress("s", generated=4, through_seq=7), 4)
    assert may_run(SessionProgress("s", generated=4, through_seq=8), 4)
