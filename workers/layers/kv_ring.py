"""Keys and values of the frames that a session still sees: the first few for good (the sink), then a rolling window.

Slots are overwritten in place and attention does not care about their order, so nothing is ever moved or copied out:
the visible frames always are a prefix of the buffer. Keys are stored rotated; when the window has moved on, the keys of
the sink are turned after it, so that they stay directly before the window's oldest frame and no distance grows without end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ithaka.workers.layers.rope import rotate_pairs


class KVRing:
    """One session's memory on one rank, for all layers.

    ``window`` counts the frames that a query sees behind the sink, its own included. Layout
    ``[layers, batch, heads, slots * tokens_per_frame, head_dim]``, so that attention's products read whole rows.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        batch: int,
        tokens_per_frame: int,
        num_heads: int,
        head_dim: int,
        window: int,
        sink: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        sink_shift: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        """``sink_shift`` is ``FrameRope.shift``; it is needed only with a sink."""
        if window < 1 or sink < 0:
            raise ValueError(f"window must be at least 1 and sink at least 0, not {window} and {sink}")
        if sink and sink_shift is None:
            raise ValueError("a sink needs sink_shift, which turns its keys after the window")
        self.window = window
        self.sink = sink
        self._tokens = tokens_per_frame
        shape = (num_layers, batch, num_heads, (sink + window) * tokens_per_frame, head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._sink_keys = torch.zeros_like(self._keys[..., : sink * tokens_per_frame, :])
        self._sink_moved = [0] * num_layers
        self._sink_shift = sink_shift

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return sum(t.numel() * t.element_size() for t in (self._keys, self._values, self._sink_keys))

    def slot(self, frame: int) -> int:
        """The slot that holds a frame, counted from the session's first."""
        if frame < self.sink:
            return frame
        return self.sink + (frame - self.sink) % self.window

    def num_visible(self, frame: int) -> int:
        """Frames that a query of ``frame`` sees."""
        return min(frame + 1, self.sink + self.window)

    def write(self, layer: int, frame: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store a frame's rotated keys and values, [batch, tokens_per_frame, heads, head_dim], over its slot's old frame."""
        first = self.slot(frame) * self._tokens
        rows = slice(first, first + self._tokens)
        self._keys[layer, :, :, rows] = keys.transpose(1, 2)
        self._values[layer, :, :, rows] = values.transpose(1, 2)
        if frame < self.sink:
            self._sink_keys[layer, :, :, rows] = keys.transpose(1, 2)

    def visible(self, layer: int, frame: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of what a query of ``frame`` sees, its own frame included, [batch, heads, tokens, head_dim] twice.

        Valid until the next write to this layer.
        """
        if self._sink_shift is not None and self.sink:
            self._move_sink(layer, max(0, frame + 1 - self.sink - self.window))
        num_tokens = self.num_visible(frame) * self._tokens
        return self._keys[layer, :, :, :num_tokens], self._values[layer, :, :, :num_tokens]

    def _move_sink(self, layer: int, num_frames: int) -> None:
        if num_frames == self._sink_moved[layer] or self._sink_shift is None:
            return
        moved = rotate_pairs(self._sink_keys[layer].float(), self._sink_shift(num_frames))
        self._keys[layer, :, :, : self.sink * self._tokens] = moved.to(self._keys.dtype)
        self._sink_moved[layer] = num_frames
