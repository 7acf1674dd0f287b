"""Every code in the code base that can reach a client stands in the one table, with what its place needs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from ithaka.server.errors import ERROR_CODES
from ithaka.workers.encoding import errors as encoding_errors
from ithaka.workers.encoding.errors import EncodeError
from ithaka.workers.families.base import FamilyInputError
from ithaka.workers.session_memory import SessionLimitError

SERVER = Path(__file__).parents[2] / "server"
HTTP, WEBSOCKET = {"ApiError"}, {"ProtocolViolation", "DropController"}
ENDS = {"EngineError", "AdmissionFailed", "fail_admission", "end", "force", "_abandon", "_finish", "_close", "_drain"}
TOLD_AS_OTHERS = {"invalid_control": "ApiError", "engine_stopping": "a daemon that can't start", "session_exists": "chance"}
"""Codes of EngineError that end no session, or none that a client could bring about."""


def _calls() -> Iterator[tuple[str, str]]:
    """Who is called, and with which code."""
    for path in SERVER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and re.fullmatch(r"[a-z]+(_[a-z]+)*", str(argument.value)):
                    yield name, str(argument.value)


def _codes() -> dict[str, set[str]]:
    found = defaultdict(set)
    for name, code in _calls():
        found[name].add(code)
    return found


def _encoding_codes() -> set[str]:
    kinds = [kind for kind in vars(encoding_errors).values() if isinstance(kind, type) and issubclass(kind, EncodeError)]
    return {kind.code for kind in kinds}


def test_the_search_finds_what_is_there() -> None:
    codes = _codes()
    assert {"session_unknown", "not_ready", "key_missing"} <= codes["ApiError"]
    assert {"resume_foreign", "binary_not_allowed"} <= codes["ProtocolViolation"]
    assert {"stream_broken", "encoder_lost"} <= codes["_abandon"]
    assert {"encode_failed", "packet_too_large"} <= _encoding_codes()


def test_codes_of_http_answers_have_a_status() -> None:
    told = set().union(*(_codes()[name] for name in HTTP))
    assert {code for code in told if code not in ERROR_CODES or ERROR_CODES[code].status is None} == set()


def test_codes_that_end_a_connection_have_a_close_code() -> None:
    told = set().union(*(_codes()[name] for name in WEBSOCKET))
    assert {code for code in told if code not in ERROR_CODES or ERROR_CODES[code].close_code is None} == set()


def test_each_code_that_closes_a_websocket_is_brought_about_by_a_test() -> None:
    folder = Path(__file__).parent
    over_a_socket = [*folder.glob("test_websocket_*.py"), *(folder / f"test_{name}.py" for name in ("api_sessions", "daemon"))]
    texts = "\n".join(path.read_text() for path in (*over_a_socket, folder / "test_session_refusals.py"))
    assert {code for code, known in ERROR_CODES.items() if known.close_code and f'"{code}"' not in texts} == set()


def test_codes_that_end_a_session_are_reasons() -> None:
    told = set().union(*(_codes()[name] for name in ENDS)) - TOLD_AS_OTHERS.keys()
    told |= _encoding_codes() | {FamilyInputError.code, SessionLimitError.code}
    assert {code for code in told if code not in ERROR_CODES or not ERROR_CODES[code].is_reason} == set()
