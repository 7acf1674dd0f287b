"""Words and keys on their way into the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ithaka.workers.families.base import Controls
from ithaka.workers.families.wan.prompt import (
    PROMPT_TOKENS,
    THEME_WORDS,
    VOCABULARY,
    padded_ids,
    theme_of,
    word_ids,
)
from ithaka.workers.families.wan.walker import KEYS, MAX_PENDING_TURN, MAX_TURN, TURN_PER_PIXEL, walk_controls


def test_every_word_stands_for_one_look() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY)
    for index, words in enumerate(THEME_WORDS.values()):
        assert all(theme_of(word) == index for word in words)


@given(prompt=st.text(max_size=200))
def test_any_text_becomes_at_most_the_known_number_of_tokens(prompt: str) -> None:
    ids = padded_ids(word_ids(prompt))
    assert len(ids) == PROMPT_TOKENS
    assert all(0 <= i <= len(VOCABULARY) for i in ids)


def test_case_plural_and_strangers_do_not_matter() -> None:
    assert word_ids("Two GARDENS, please!") == word_ids("garden")
    assert word_ids("please") == () and theme_of("please") is None
    assert len(word_ids("night " * 50)) == PROMPT_TOKENS


def test_opposite_keys_cancel_and_taps_count() -> None:
    assert walk_controls(Controls(held=frozenset(KEYS)), 0.0) == ((0.0, 0.0, 0.0), 0.0)
    assert walk_controls(Controls(held=frozenset({"KeyW"}), tapped=frozenset({"KeyD"})), 0.0)[0] == (1.0, 1.0, 0.0)
    assert walk_controls(Controls(held=frozenset({"Escape"})), 0.0)[0] == (0.0, 0.0, 0.0)


@given(
    dx=st.floats(-1e6, 1e6),
    pending=st.floats(-MAX_PENDING_TURN, MAX_PENDING_TURN),
    held=st.frozensets(st.sampled_from(KEYS)),
)
def test_a_flick_of_the_pointer_is_spread_but_bounded(dx: float, pending: float, held: frozenset[str]) -> None:
    (_, _, turn), left = walk_controls(Controls(held=held, pointer_dx=dx), pending)
    keyed = float("ArrowRight" in held) - float("ArrowLeft" in held)
    assert abs(turn) <= MAX_TURN and abs(left) <= MAX_PENDING_TURN
    if abs(left) < MAX_PENDING_TURN:
        assert turn + left == pytest.approx(keyed + pending + TURN_PER_PIXEL * dx, abs=1e-6)
