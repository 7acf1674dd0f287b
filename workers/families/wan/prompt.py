"""From a prompt's words to a few learned tokens: the smallest encoder that lets words choose a world."""

from __future__ import annotations

import re

import torch
from torch import nn

PROMPT_TOKENS = 6
"""Tokens that the transformer attends to; further words of a prompt are not read."""

_WORDS_OF_LOOKS = {
    "garden": "garden meadow day daylight sunny spring morning bright park grass flower summer noon field lawn cheerful "
    "classic colourful colorful default",
    "sunset": "sunset dusk evening sundown dawn sunrise orange twilight golden amber warm glow romantic autumn fire lava "
    "red volcano",
    "ice": "ice icy snow snowy winter frozen frost frosty cold arctic glacier crystal polar freeze blizzard white "
    "christmas blue",
    "jungle": "jungle forest rainforest moss mossy tropical ruin temple vine wild green overgrown swamp wood tree aztec "
    "maya amazon",
    "night": "night midnight dark neon star starry moon moonlight cyberpunk city galaxy space nocturnal cosmic black "
    "purple synthwave starlight",
    "desert": "desert sand sandy dune egypt sahara canyon dry pyramid sandstone oasis arid savanna mesa western yellow beach",
}
THEME_WORDS: dict[str, tuple[str, ...]] = {look: tuple(words.split()) for look, words in _WORDS_OF_LOOKS.items()}
"""The words that the encoder knows, by the look that they stand for."""

VOCABULARY = tuple(word for words in THEME_WORDS.values() for word in words)
_IDS = {word: index + 1 for index, word in enumerate(VOCABULARY)}


def word_ids(prompt: str) -> tuple[int, ...]:
    """Ids of the known words of a prompt, in order, at most PROMPT_TOKENS; unknown words are passed over.

    Id 0 stands for "no word". A plural is read as its singular.
    """
    ids = []
    for word in re.findall(r"[a-z]+", prompt.lower()):
        found = _IDS.get(word) or _IDS.get(word.removesuffix("s"))
        if found is not None:
            ids.append(found)
    return tuple(ids[:PROMPT_TOKENS])


def padded_ids(ids: tuple[int, ...]) -> list[int]:
    """The ids followed by zeros up to PROMPT_TOKENS."""
    return [*ids, *([0] * (PROMPT_TOKENS - len(ids)))]


def theme_of(prompt: str) -> int | None:
    """Index in THEME_WORDS of the look that the first known word stands for; None if no word is known."""
    ids = word_ids(prompt)
    if not ids:
        return None
    word = VOCABULARY[ids[0] - 1]
    return next(index for index, words in enumerate(THEME_WORDS.values()) if word in words)


class PromptEncoder(nn.Module):
    """A learned vector per word, and one for "no word"."""

    def __init__(self, text_dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY) + 1, text_dim)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``ids`` int64 [..., PROMPT_TOKENS] → float [..., PROMPT_TOKENS, text_dim]."""
        vectors: torch.Tensor = self.words(ids)
        return vectors
