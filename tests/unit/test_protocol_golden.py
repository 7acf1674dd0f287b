"""The machine-readable half of clients/protocol says what the server does."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ithaka.server.errors import ERROR_CODES, ProtocolViolation
from ithaka.server.session.messages import parse_client_message

FOLDER = Path(__file__).parents[2] / "clients" / "protocol"
GOLDEN: dict[str, Any] = json.loads((FOLDER / "golden.json").read_text())


def export() -> ModuleType:
    spec = importlib.util.spec_from_file_location("protocol_export", FOLDER / "export.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_server_says() -> None:
    documents: dict[str, str] = export().documents()
    stale = [name for name, text in documents.items() if (FOLDER / name).read_text() != text]
    assert not stale, "run: python clients/protocol/export.py"


@pytest.mark.parametrize("name", GOLDEN["client_messages"])
def test_golden_client_messages_are_taken(name: str) -> None:
    message = GOLDEN["client_messages"][name]
    parsed = parse_client_message(json.dumps(message)).model_dump(mode="json")
    assert {key: parsed[key] for key in message} == message


@pytest.mark.parametrize("name", GOLDEN["refused_client_messages"])
def test_refused_client_messages(name: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        parse_client_message(json.dumps(GOLDEN["refused_client_messages"][name]))
    assert caught.value.code == "message_invalid"


@pytest.mark.parametrize("name", GOLDEN["frames"])
def test_golden_frames_have_the_documented_layout(name: str) -> None:
    golden = GOLDEN["frames"][name]
    data = bytes.fromhex(golden["hex"])
    kind, flags, header_bytes, payload_bytes, seq, pts, control_id, chunk, age_ms = struct.unpack_from("!BBHIQQQII", data)
    assert (kind, header_bytes, payload_bytes) == (1, 40, len(data) - 40)
    assert (bool(flags & 1), bool(flags & 2)) == (golden["key"], golden["decode_only"])
    told = {"seq": seq, "pts": pts, "control_id": control_id, "chunk": chunk, "age_ms": age_ms}
    assert told == {key: golden[key] for key in told}
    assert data[40:].hex() == golden["payload"]


def test_every_message_type_of_the_page_is_golden() -> None:
    page = (FOLDER / "README.md").read_text()
    for side in ("server_messages", "client_messages"):
        for message in GOLDEN[side].values():
            assert f"`{message['type']}`" in page


def test_every_close_code_of_the_table_is_on_the_page() -> None:
    page = (FOLDER / "README.md").read_text()
    for code in {known.close_code for known in ERROR_CODES.values()} - {None}:
        assert str(code) in page


def test_every_code_shows_up_somewhere_and_explains_itself() -> None:
    for code, known in ERROR_CODES.items():
        assert known.places, code
        assert known.meaning.endswith("."), code
