"""In which order a rank's queries, keys and values leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ithaka.workers.layers.attention import HeadShards


class Watched:
    """An exchange of one rank that writes down what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._sent: dict[str, torch.Tensor] = {}

    def scatter_heads_async(
        self, x: torch.Tensor, tag: str, *, seq_splits: list[int] | None = None, head_splits: list[int] | None = None
    ) -> None:
        self.asked.append(f"{tag} {seq_splits} {head_splits}")
        self._sent[tag] = x

    def wait(self, tags: Sequence[str]) -> tuple[torch.Tensor, ...]:
        self.asked.append("wait " + " ".join(tags))
        return tuple(self._sent[tag] for tag in tags)


def test_values_leave_before_queries_and_keys_are_made() -> None:
    exchange = Watched()
    shards = HeadShards(exchange, 2, [3, 2], [1, 1])  # type: ignore[arg-type]
    q, k, v = (torch.full((1, 3, 2, 4), float(number)) for number in range(3))

    def make_qk() -> tuple[torch.Tensor, torch.Tensor]:
        exchange.asked.append("made")
        return q, k

    received = shards.scatter_values_first(v, make_qk)
    assert [got is sent for got, sent in zip(received, (q, k, v), strict=True)] == [True] * 3
    splits = "[3, 2] [1, 1]"
    assert exchange.asked == [f"values {splits}", "made", f"queries {splits}", f"keys {splits}", "wait queries keys values"]
