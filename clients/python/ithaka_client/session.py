"""A session as the program that steers it uses it: frames in order, each once; controls back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Literal

from ithaka_client.api import Api, SessionInfo
from ithaka_client.errors import IthakaError, UsageError
from ithaka_client.held_keys import HeldKeys
from ithaka_client.protocol import (
    Control,
    build_control,
    build_end,
    build_pause,
    build_play,
)
from ithaka_client.stream import Outcome
from ithaka_client.viewer import Viewer

DISCARD_TIMEOUT_S = 5.0


class Session(Viewer):
    """Made by ``Client.create_session``. Use it as an async context manager: leaving it early ends the session at once.

    ``connect_timeout_s`` bounds queueing and start before the first connection, ``resume_timeout_s`` each outage.
    ``frames``, in ``lossless``, yields every frame once: each is acknowledged when it is handed over, so a slow loop slows
    the generator.
    """

    _role = "controller"

    def __init__(self, api: Api, info: SessionInfo, *, connect_timeout_s: float, resume_timeout_s: float) -> None:
        super().__init__(api, info, connect_timeout_s=connect_timeout_s, resume_timeout_s=resume_timeout_s)
        self._keys = HeldKeys()
        self._last_control_id = 0
        self._wish: Literal["pause", "play", "end"] | None = None

    async def control(
        self,
        *,
        pressed: Iterable[str] = (),
        released: Iterable[str] = (),
        pointer: tuple[float, float] = (0.0, 0.0),
        prompt: str | None = None,
    ) -> int:
        """Keys by KeyboardEvent.code, pointer motion (dx, dy) in CSS pixels, right and down positive.

        Returns the control's id: the first frame whose ``control_id`` is at least this used it. During an outage it waits;
        what a lost connection swallowed is told again after the next resume (keys and prompt, not motion). Raises UsageError
        for what the model does not take.
        """
        hello = await self._stream.connect()
        if prompt is not None and not hello.takes_prompt:
            raise UsageError(f"The model {hello.model} takes no prompt.")
        if pointer != (0.0, 0.0) and not hello.takes_pointer:
            raise UsageError(f"The model {hello.model} takes no pointer.")
        control = Control(self._next_control_id(), tuple(pressed), tuple(released), pointer[0], pointer[1], prompt)
        self._keys.apply(control)
        await self._stream.send(build_control(control))
        return control.control_id

    async def pause(self) -> None:
        await self._want("pause")

    async def play(self) -> None:
        await self._want("play")

    async def end(self) -> None:
        """Generate no more. What was generated still arrives through ``frames``, and the delivery is confirmed."""
        await self._want("end")

    async def aclose(self) -> None:
        """Leave. A session that has not ended is discarded on the server. Idempotent, bounded."""
        has_ended = self._stream.outcome is not None
        await super().aclose()
        if not has_ended:
            position = self._stream.position
            self._stream.outcome = Outcome(False, "closed", "client_left", position.received_through, position.decoded_count)
            with contextlib.suppress(IthakaError, TimeoutError):
                async with asyncio.timeout(DISCARD_TIMEOUT_S):
                    await self._api.delete_session(self.id, force=True, token=self.info.token)

    def _used(self, control_id: int) -> None:
        self._keys.confirm(control_id)

    def _next_control_id(self) -> int:
        self._last_control_id += 1
        return self._last_control_id

    async def _want(self, wish: Literal["pause", "play", "end"]) -> None:
        await self._stream.connect()
        self._wish = wish
        await self._stream.send(_WISHES[wish])

    def _repeat_wishes(self) -> list[str]:
        keys = self._keys.snapshot(self._last_control_id + 1)
        messages = []
        if keys is not None:
            messages.append(build_control(keys))
            self._last_control_id = keys.control_id
        if self._wish is not None:
            messages.append(_WISHES[self._wish])
        return messages


_WISHES = {"pause": build_pause(), "play": build_play(), "end": build_end()}
