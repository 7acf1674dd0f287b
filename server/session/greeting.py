"""What a session says first to each connection."""

from __future__ import annotations

from ithaka.server.session.delivery import Delivery
from ithaka.server.session.messages import Hello, Role
from ithaka.server.session.spec import SessionSpec
from ithaka.workers.contract import ModelDescription


def hello_of(spec: SessionSpec, description: ModelDescription, delivery: Delivery, codec: str, role: Role) -> Hello:
    return Hello(
        session=spec.session_id,
        stream=delivery.stream,
        role=role,
        next_seq=(delivery.generated_through if role == "viewer" else delivery.decoded_through) + 1,
        window=delivery.window,
        codec=codec,
        width=description.width,
        height=description.height,
        fps=description.fps,
        time_base=(1, description.fps),
        pixels=spec.pixels,
        model=spec.model,
        controls=description.controls,
        takes_prompt=description.takes_prompt,
        takes_pointer=description.takes_pointer,
    )
