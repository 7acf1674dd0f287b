"""A session over real sockets: frames, acknowledgements, the end."""

from __future__ import annotations

from tests.fakes import payload_of
from tests.served import served


async def test_a_session_from_create_to_fin() -> None:
    async with served() as server:
        session = await server.create(max_frames=6)
        async with server.connect(session) as client:
            hello = await client.greet()
            assert (hello["next_seq"], hello["window"], hello["time_base"]) == (1, 8, [1, 16])
            for seq in range(1, 7):
                frame = await client.frame()
                assert (frame.seq, frame.pts, frame.payload, frame.decode_only) == (seq, seq - 1, payload_of(seq, 100), False)
                await client.ack(seq)
                if seq % 2 == 0:
                    server.timers.advance(2 / 16)
            eos = await client.expect("eos")
            assert eos == {"type": "eos", "last_seq": 6, "count": 6, "reason": "max_frames", "retryable": False}
            await client.say("fin", decoded_count=6, last_seq=6)
            last = await client.expect_state("closed")
            assert last == {"type": "state", "state": "closed", "reason": "max_frames", "delivered": True}
            assert await client.closed() == 1000
        assert (await server.look(session["id"]))["delivered"] is True
