"""What a peer may get wrong over HTTP: refused with a code, and nothing fails later in the server's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rtc_peer import RtcPeer
from tests.served import Served, served

SDP = {"Content-Type": "application/sdp"}
FRAGMENT = {"Content-Type": "application/trickle-ice-sdpfrag"}
GOOD = "1 1 udp 2113937151 127.0.0.1 9 typ host"
FIELDS = st.one_of(
    st.sampled_from(["", "0", "1", "9", "99999", "65536", "-1", "udp", "tcp", "typ", "host", "127.0.0.1", "::1", "1.2.3"]),
    st.integers(-(2**70), 2**70).map(str),
    st.text(max_size=5),
)
LINES = st.one_of(
    st.tuples(st.integers(0, 7), FIELDS).map(lambda change: with_field(*change)),
    st.text(max_size=40).map(lambda text: text.replace("127", "")),
    st.lists(FIELDS, max_size=12).map(" ".join),
)


def with_field(at: int, value: str) -> str:
    fields = GOOD.split()
    fields[at] = value
    return " ".join(fields)


@dataclass
class Rig:
    server: Served
    session: dict[str, Any]
    offer: str

    @property
    def path(self) -> str:
        return f"/v1/sessions/{self.session['id']}/whep"

    async def post(self, offer: str, headers: dict[str, str] = SDP) -> httpx.Response:
        return await self.server.http.post(self.path, content=offer.encode(), headers={**headers, **self._bearer})

    async def patch(self, address: str, fragment: str, headers: dict[str, str] | None = None) -> httpx.Response:
        content = fragment.encode()
        return await self.server.http.patch(address, content=content, headers={**FRAGMENT, **self._bearer, **(headers or {})})

    async def request(self, method: str, address: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        return await self.server.http.request(method, address, headers={**self._bearer, **(headers or {})}, **body)

    async def connected(self) -> str:
        """The address of a connection that waits for its peer."""
        answer = await self.post(self.offer)
        assert answer.status_code == 201, answer.text
        return str(answer.headers["location"])

    @property
    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.session['token']}"}


async def rigged() -> AsyncIterator[Rig]:
    peer = RtcPeer(with_video=True, with_channel=False)
    try:
        async with served() as server:
            yield Rig(server, await server.create(delivery="live"), await peer.offer())
    finally:
        await peer.close()


rig = pytest.fixture(rigged)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@settings(deadline=None, max_examples=12)
@given(st.lists(LINES, min_size=1, max_size=6))
def test_no_candidate_line_breaks_anything_at_once_or_later(lines: list[str]) -> None:
    failures: list[dict[str, Any]] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async for rig in rigged():
            answers = []
            for line in lines:
                answers.append(await rig.post(f"{rig.offer}a=candidate:{line}\r\n"))
            address = await rig.connected()
            for line in lines:
                answers.append(await rig.patch(address, f"a=mid:0\r\na=candidate:{line}\r\n"))
            statuses = {answer.status_code for answer in answers}
            assert statuses <= {201, 204, 400}
            await rig.server.http.get("/healthz")

    asyncio.run(play())
    assert not failures


@pytest.mark.parametrize("candidate", ["1 1 UDP 1 127.0.0.1 99999 typ host", "1 1 UDP 1 nowhere 9 typ host"])
async def test_a_candidate_that_nothing_can_be_sent_to_is_refused(rig: Rig, candidate: str) -> None:
    assert code_of(await rig.post(f"{rig.offer}a=candidate:{candidate}\r\n")) == (400, "sdp_invalid")
    trickled = await rig.patch(await rig.connected(), f"a=mid:0\r\na=candidate:{candidate}\r\n")
    assert code_of(trickled) == (400, "sdp_invalid")


async def test_a_candidate_for_an_unknown_section_is_refused(rig: Rig) -> None:
    address = await rig.connected()
    assert code_of(await rig.patch(address, f"a=mid:nowhere\r\na=candidate:{GOOD}\r\n")) == (400, "sdp_invalid")


@pytest.mark.parametrize("line", ["a=mid:0", "a=fingerprint:"])
async def test_an_offer_that_can_not_work_is_refused(rig: Rig, line: str) -> None:
    without = "\r\n".join(known for known in rig.offer.splitlines() if not known.startswith(line)) + "\r\n"
    assert code_of(await rig.post(without)) == (400, "sdp_invalid")


async def test_h264_in_single_packets_is_refused_and_the_text_says_why(rig: Rig) -> None:
    answer = await rig.post(rig.offer.replace("packetization-mode=1", "packetization-mode=0"))
    assert code_of(answer) == (406, "codec_unsupported")
    assert "packetization-mode=1" in answer.json()["error"]["message"]


async def test_if_match_has_to_name_the_connection(rig: Rig) -> None:
    answer = await rig.post(rig.offer)
    address, etag = answer.headers["location"], answer.headers["etag"]
    fragment = f"a=mid:0\r\na=candidate:{GOOD}\r\n"
    assert code_of(await rig.patch(address, fragment, {"If-Match": '"another"'})) == (412, "etag_mismatch")
    assert code_of(await rig.patch(address, fragment, {"If-Match": f"W/{etag}"})) == (412, "etag_mismatch")
    for taken in (etag, f'"another", {etag}', "*"):
        assert (await rig.patch(address, fragment, {"If-Match": taken})).status_code == 204


@pytest.mark.parametrize("carrier", ["whep", "webrtc"])
async def test_a_connection_ends_only_for_who_means_it(rig: Rig, carrier: str) -> None:
    if carrier == "whep":
        answer = await rig.post(rig.offer)
    else:
        answer = await rig.request("POST", f"/v1/sessions/{rig.session['id']}/webrtc", json={"type": "offer", "sdp": rig.offer})
    assert answer.status_code == 201, answer.text
    address, etag = answer.headers["location"], answer.headers["etag"]
    for other in ('"another"', f"W/{etag}", '""'):
        assert code_of(await rig.request("DELETE", address, {"If-Match": other})) == (412, "etag_mismatch")
    assert rig.server.services.rtc.num_open == 1
    ended = await rig.request("DELETE", address, {"If-Match": etag})
    assert ended.status_code == (200 if carrier == "whep" else 204)
    await rig.server.until(lambda: rig.server.services.rtc.num_open == 0)


async def test_candidates_as_json_are_taken_only_for_the_connection_they_are_meant_for(rig: Rig) -> None:
    answer = await rig.request("POST", f"/v1/sessions/{rig.session['id']}/webrtc", json={"type": "offer", "sdp": rig.offer})
    address, etag = answer.headers["location"], answer.headers["etag"]
    body = {"sdp_fragment": f"a=mid:0\r\na=candidate:{GOOD}\r\n"}
    refused = await rig.request("PATCH", address, {"If-Match": '"another"'}, json=body)
    assert code_of(refused) == (412, "etag_mismatch")
    assert (await rig.request("PATCH", address, {"If-Match": etag}, json=body)).status_code == 204


async def test_a_body_of_a_foreign_type_is_told_the_right_one(rig: Rig) -> None:
    address = await rig.connected()
    for foreign in ("text/plain", "application/json", "application/sdp"):
        headers = {"Content-Type": foreign}
        patched = await rig.patch(address, "x", headers)
        assert code_of(patched) == (415, "unsupported_media_type")
        assert "application/trickle-ice-sdpfrag" in patched.json()["error"]["message"]
        if foreign != "application/sdp":
            posted = await rig.post("x", headers)
            assert code_of(posted) == (415, "unsupported_media_type")
            assert posted.json()["error"]["message"].endswith("application/sdp")
