"""A session over a data channel, with real sockets on loopback: the WebSocket's messages, nothing lost, nobody unwanted."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.fakes import READY, FakeEngine, payload_of
from tests.rtc_peer import DEADLINE_S, RtcPeer, connected
from tests.rtc_served import controller, exchange, until_decoded
from tests.served import Served, config_for, served

PERIOD_S = 2 / 16
KEY = "0123456789abcdef0123"


async def post_offer(server: Served, session_id: str, headers: dict[str, str] | None = None) -> httpx.Response:
    peer = RtcPeer(with_video=False, with_channel=True)
    try:
        return await server.http.post(
            f"/v1/sessions/{session_id}/webrtc", json={"type": "offer", "sdp": await peer.offer()}, headers=headers
        )
    finally:
        await peer.close()


@pytest.mark.parametrize("payload_bytes", [100, 200_000])
async def test_every_frame_arrives_once_in_order_and_the_delivery_is_confirmed(payload_bytes: int) -> None:
    """Frames beyond one message come in pieces."""
    async with served(engine=FakeEngine(READY, payload_bytes=payload_bytes)) as server:
        session = await server.create(max_frames=6)
        async with controller(server, session) as peer:
            await peer.greet()
            for seq in range(1, 7):
                frame = await peer.frame()
                assert (frame.seq, frame.payload) == (seq, payload_of(seq, payload_bytes))
                await peer.say("ack", received_through=seq, decoded_through=seq)
                if seq % 2 == 0:
                    await until_decoded(server, session, seq)
                    server.timers.advance(PERIOD_S)
            assert (await peer.expect("eos"))["count"] == 6
            await peer.say("fin", decoded_count=6, last_seq=6)
            while (state := await peer.expect("state"))["state"] != "closed":
                pass
            assert state["delivered"] is True
            await peer.closed()
        assert (await server.look(session["id"]))["delivered"] is True
        await server.until(lambda: server.services.rtc.num_open == 0)


async def test_a_peer_that_takes_short_messages_gets_frames_in_short_pieces() -> None:
    async with served(engine=FakeEngine(READY, payload_bytes=100_000)) as server:
        session = await server.create()
        post = exchange(server, session)

        async def modest(offer: str) -> str:
            assert "a=max-message-size:262144" in offer
            return await post(offer.replace("a=max-message-size:262144", "a=max-message-size:16384"))

        async with connected(modest) as peer:
            await peer.greet()
            pieces: list[bytes] = []
            async with asyncio.timeout(DEADLINE_S):
                while sum(map(len, pieces)) < 100_040:
                    piece = await peer.heard.get()
                    pieces += [piece] if isinstance(piece, bytes) else []
            assert max(map(len, pieces)) == 16_384
            assert b"".join(pieces)[40:] == payload_of(1, 100_000)


async def test_a_lost_connection_detaches_and_another_one_resumes() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            assert [(await peer.frame()).seq for _ in range(2)] == [1, 2]
            await peer.say("ack", received_through=2, decoded_through=1)
            await until_decoded(server, session, 1)
        await server.until_state(session["id"], "detached")
        async with controller(server, session) as peer:
            hello = await peer.greet()
            assert hello["next_seq"] == 2
            again = [await peer.frame() for _ in range(2)]
            assert [(frame.seq, frame.decode_only) for frame in again] == [(1, True), (2, False)]


async def test_a_websocket_goes_on_where_a_data_channel_was_lost() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            await peer.say("ack", received_through=1, decoded_through=1)
            await until_decoded(server, session, 1)
        await server.until_state(session["id"], "detached")
        async with server.connect(session) as client:
            assert (await client.greet())["next_seq"] == 2


async def test_controls_reach_the_engine_and_a_flood_keeps_the_newest_state() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            for number in range(1, 200):
                await peer.say("control", control_id=number, pressed=["KeyW"] if number % 2 else [], pointer_dx=1)
            await peer.say("control", control_id=200, released=["KeyW"], pressed=["KeyA"])
            deadline = asyncio.get_running_loop().time() + 10
            while not server.engine.controls or server.engine.controls[-1].control_id < 200:
                server.timers.advance(0.01)
                await server.http.get("/healthz")
                assert asyncio.get_running_loop().time() < deadline
            taken = server.engine.controls
            assert len(taken) < 200, "folded"
            assert sum(control.pointer_dx for control in taken) == 199, "motion is never lost"
            assert "KeyW" in taken[-1].released and "KeyA" in taken[-1].pressed
            assert (await server.look(session["id"]))["state"] == "streaming"


async def test_far_too_many_messages_end_the_connection_and_not_the_session() -> None:
    async with served(config_for(server={"max_messages_per_s": 10})) as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            for number in range(1, 60):
                await peer.say("control", control_id=number)
            assert (await peer.expect_error())["code"] == "rate_exceeded"
            await peer.closed()
        await server.until_state(session["id"], "detached")


@pytest.mark.parametrize(
    ("data", "code"), [(b"\x01", "binary_not_allowed"), ("{", "message_invalid"), ("x" * 70_000, "message_invalid")]
)
async def test_what_is_no_message_ends_the_connection(data: str | bytes, code: str) -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.expect("hello")
            assert peer.channel is not None
            peer.channel.send(data)
            assert (await peer.expect_error())["code"] == code
            await peer.closed()


async def test_a_second_controller_is_refused_while_the_first_is_connected() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as first:
            await first.greet()
            async with controller(server, session) as second:
                assert (await second.expect_error())["code"] == "controller_connected"
                await second.closed()
            await first.frame()


async def test_a_viewer_watches_over_a_channel_and_controls_nothing() -> None:
    async with served() as server:
        session = await server.create()
        async with controller(server, session) as peer:
            await peer.greet()
            token = (await server.http.post(f"/v1/sessions/{session['id']}/token", json={"role": "viewer"})).json()["token"]
            async with connected(exchange(server, session, token)) as viewer:
                assert (await viewer.expect("hello"))["role"] == "viewer"
                await peer.say("ack", received_through=2, decoded_through=2)
                await until_decoded(server, session, 2)
                server.timers.advance(PERIOD_S)
                assert (await viewer.frame()).key
                await viewer.say("control", control_id=1)
                assert (await viewer.expect_error())["code"] == "role_not_allowed"


async def test_an_offer_needs_a_token_of_its_own_session() -> None:
    async with served(config_for(access={"api_keys": (KEY,)})) as server:
        server.http.headers["Authorization"] = f"Bearer {KEY}"
        mine, other = await server.create(), await server.create()

        async def refused(authorization: str) -> tuple[int, str]:
            answer = await post_offer(server, mine["id"], {"Authorization": authorization})
            return answer.status_code, answer.json()["error"]["code"]

        assert await refused(f"Bearer {other['token']}") == (403, "role_not_allowed")
        assert await refused("Bearer nonsense") == (401, "key_invalid")
        server.wall.now_s += 3601
        assert await refused(f"Bearer {mine['token']}") == (401, "token_expired")
        del server.http.headers["Authorization"]
        answer = await post_offer(server, mine["id"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_missing")
        assert server.services.rtc.num_open == 0


async def test_a_peer_that_never_comes_up_holds_nothing_for_long() -> None:
    config = config_for(webrtc={"connect_timeout_s": 0.2, "max_connections": 2})
    async with served(config) as server:
        session = await server.create()
        for _ in range(2):
            assert (await post_offer(server, session["id"])).status_code == 201
        full = await post_offer(server, session["id"])
        assert (full.status_code, full.json()["error"]["code"]) == (503, "connections_full")
        await server.until(lambda: server.services.rtc.num_open == 0)
        async with controller(server, session) as peer:
            await peer.greet()


async def test_candidates_trickle_in_and_a_connection_can_be_ended() -> None:
    async with served() as server:
        session = await server.create()
        peer = RtcPeer(with_video=False, with_channel=True)
        try:
            offer = await peer.offer()
            lines = offer.splitlines()
            candidates = [line for line in lines if line.startswith(("a=candidate", "a=end-of-candidates"))]
            bare = "\r\n".join([line for line in lines if line not in candidates] + [""])
            posted = await server.http.post(f"/v1/sessions/{session['id']}/webrtc", json={"type": "offer", "sdp": bare})
            address = posted.headers["location"]
            await peer.accept(posted.json()["sdp"])
            fragment = "\r\n".join(["a=mid:0", *candidates])
            patched = await server.http.patch(address, json={"sdp_fragment": fragment})
            assert patched.status_code == 204, patched.text
            await peer.greet()
            assert (await server.http.delete(address)).status_code == 204
            await peer.closed()
            await server.until_state(session["id"], "detached")
            assert (await server.http.delete(address)).json()["error"]["code"] == "connection_unknown"
        finally:
            await peer.close()


async def test_another_ice_session_needs_another_connection() -> None:
    async with served() as server:
        session = await server.create()
        address = (await post_offer(server, session["id"])).headers["location"]
        answer = await server.http.patch(address, json={"sdp_fragment": "a=ice-ufrag:other"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "ice_restart_unsupported")


async def test_lossless_frames_never_go_to_a_track_alone() -> None:
    async with served() as server:
        session = await server.create()
        peer = RtcPeer(with_video=True, with_channel=False)
        try:
            body = {"type": "offer", "sdp": await peer.offer()}
            answer = await server.http.post(f"/v1/sessions/{session['id']}/webrtc", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "track_unsupported")
        finally:
            await peer.close()
        assert server.services.rtc.num_open == 0


async def test_a_peer_without_our_codecs_is_told_so() -> None:
    async with served() as server:
        session = await server.create(delivery="live")
        peer = RtcPeer(with_video=True, with_channel=True, codec="video/VP8")
        try:
            body = {"type": "offer", "sdp": (await peer.offer()).replace("VP8/90000", "AV1/90000")}
            answer = await server.http.post(f"/v1/sessions/{session['id']}/webrtc", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (406, "codec_unsupported")
        finally:
            await peer.close()
        assert server.services.rtc.num_open == 0


async def test_a_session_that_is_over_or_waits_takes_no_offer() -> None:
    async with served() as server:
        session = await server.create()
        await server.http.delete(f"/v1/sessions/{session['id']}?force=true")
        assert (await post_offer(server, session["id"])).json()["error"]["code"] == "session_ended"
        await server.create(), await server.create()
        waiting = await server.create()
        assert (await post_offer(server, waiting["id"])).json()["error"]["code"] == "session_not_started"


@pytest.mark.parametrize("wish", [{"pacing": "unpaced"}, {"pixels": "exact"}])
async def test_live_goes_with_media_pace_and_lossy_pixels(wish: dict[str, str]) -> None:
    async with served() as server:
        answer = await server.http.post("/v1/sessions", json={"model": "fake", "delivery": "live", **wish})
        assert answer.status_code == 422


async def test_ice_servers_are_handed_out_with_passwords_that_expire() -> None:
    servers = [
        {"urls": ["stun:stun.example.org:3478"]},
        {"urls": ["turn:turn.example.org:3478?transport=tcp"], "secret": "a secret of the turn server"},
        {"urls": ["turns:turn.example.org:5349"], "username": "me", "credential": "mine"},
    ]
    async with served(config_for(webrtc={"ice_servers": servers})) as server:
        session = await server.create()
        stun, turn, fixed = (await server.http.get(f"/v1/sessions/{session['id']}/webrtc")).json()["ice_servers"]
        assert stun == {"urls": ["stun:stun.example.org:3478"], "username": "", "credential": ""}
        expires, _, name = turn["username"].partition(":")
        assert name == session["id"] and int(expires) == int(server.wall()) + 3600
        assert len(turn["credential"]) == 28 and "secret" not in turn["credential"]
        assert (fixed["username"], fixed["credential"]) == ("me", "mine")


async def test_a_live_model_stands_still_while_nobody_steers() -> None:
    async with served() as server:
        session = await server.create(delivery="live")

        def generated() -> int:
            return server.engine.sessions[session["id"]].generated_through

        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            for _ in range(8):
                server.timers.advance(PERIOD_S)
                await server.http.get("/healthz")
            assert generated() >= 16, "nothing waits for an acknowledgement"
        await server.until_state(session["id"], "detached")
        await server.http.get("/healthz")
        left_at = generated()
        server.timers.advance(2)
        await server.http.get("/healthz")
        assert generated() == left_at
        async with controller(server, session) as peer:
            await peer.greet()
            await server.until_state(session["id"], "streaming")
            for _ in range(4):
                server.timers.advance(PERIOD_S)
                await server.http.get("/healthz")
            assert generated() > left_at


async def test_a_live_session_that_was_paused_stays_paused_for_its_next_connection() -> None:
    async with served() as server:
        session = await server.create(delivery="live")
        async with controller(server, session) as peer:
            await peer.greet()
            await peer.frame()
            await peer.say("pause")
            await server.until_state(session["id"], "paused")
        await server.until_state(session["id"], "detached")
        left_at = server.engine.sessions[session["id"]].generated_through
        async with controller(server, session) as peer:
            await peer.greet()
            await server.until_state(session["id"], "paused")
            server.timers.advance(1)
            await server.http.get("/healthz")
            assert server.engine.sessions[session["id"]].generated_through == left_at
