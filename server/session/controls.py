"""What a user did, checked against what the model takes."""

from __future__ import annotations

from ithaka.server.errors import ApiError
from ithaka.server.session.messages import ControlBody
from ithaka.workers.contract import ApplyControl, ModelDescription


class ControlDesk:
    """Keeps the newest id and the keys that are down, so that a lost client's keys can be let go."""

    def __init__(self, session_id: str, description: ModelDescription) -> None:
        self._session_id = session_id
        self._description = description
        self._last_id = 0
        self._held: set[str] = set()

    def begin_connection(self) -> None:
        """A new connection counts its ids from 1 again: its client may be a new one."""
        self._last_id = 0

    def take(self, body: ControlBody, control_id: int | None, *, is_strict: bool = False) -> ApplyControl:
        """``control_id`` None takes the next one. Keys that the model does not know are left out, unless ``is_strict``.

        Raises ApiError ``control_stale``, ``control_not_taken`` or, where ``is_strict``, ``control_unknown_key``.
        """
        known = self._description
        if is_strict:
            self._require_known_keys(body)
        if body.prompt is not None and not known.takes_prompt:
            raise ApiError("control_not_taken", f"model {known.model!r} takes no prompt", field="body.prompt")
        if (body.pointer_dx or body.pointer_dy) and not known.takes_pointer:
            raise ApiError("control_not_taken", f"model {known.model!r} takes no pointer", field="body.pointer_dx")
        number = self._last_id + 1 if control_id is None else control_id
        if number <= self._last_id:
            raise ApiError("control_stale", f"control_id {number} came after {self._last_id}", field="body.control_id")
        self._last_id = number
        pressed = tuple(key for key in body.pressed if key in known.controls)
        released = tuple(key for key in body.released if key in known.controls)
        self._held = (self._held | set(pressed)) - set(released)
        return ApplyControl(
            self._session_id, number, pressed, released, float(body.pointer_dx), float(body.pointer_dy), body.prompt
        )

    def release_all(self) -> ApplyControl | None:
        """Let go what is down; None when nothing is."""
        if not self._held:
            return None
        released, self._held = tuple(sorted(self._held)), set()
        return ApplyControl(self._session_id, self._last_id, released=released)

    def _require_known_keys(self, body: ControlBody) -> None:
        for field, keys in (("pressed", body.pressed), ("released", body.released)):
            unknown = [key for key in keys if key not in self._description.controls]
            if unknown:
                known = ", ".join(self._description.controls) or "none"
                message = f"model {self._description.model!r} has no key {unknown[0]!r}; its keys are: {known}"
                raise ApiError("control_unknown_key", message, field=f"body.{field}")
