"""Python clients that only look: any number beside the one that steers, with a token that allows no more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import av
import pytest

from ithaka.workers.families.synthetic.barcode import Barcode, read
from ithaka_client import AccessError, Client, ConflictError, Frame, NotFoundError, Session, UsageError, Viewer
from tests.e2e.cuttable_proxy import cuttable_proxy
from tests.e2e.live_daemon import KEY, barcode_of
from tests.e2e.running_daemon import RunningDaemon

ENOUGH_FRAMES = 32
DEADLINE_S = 30


@pytest.fixture
def daemon(live: RunningDaemon) -> RunningDaemon:
    return live


def barcode_in(frame: Frame) -> Barcode:
    barcode = read(frame.yuv[0])
    assert barcode is not None
    return barcode


async def walk(session: Session, ready: asyncio.Event) -> list[int]:
    """Steers, and says when pictures come."""
    await session.control(pressed=["KeyW"])
    seqs = []
    async for frame in session.frames():
        seqs.append(frame.seq)
        ready.set()
    return seqs


@dataclass(frozen=True, slots=True)
class Seen:
    barcode: Barcode
    is_key: bool


async def look(viewer: Viewer, has_seen_enough: asyncio.Event) -> list[Seen]:
    """To the end of the session."""
    seen = []
    try:
        async with asyncio.timeout(DEADLINE_S), viewer:
            async for frame in viewer.frames():
                seen.append(Seen(barcode_in(frame), frame.is_key))
                if len(seen) == ENOUGH_FRAMES:
                    has_seen_enough.set()
    finally:
        has_seen_enough.set()
    return seen


@pytest.mark.parametrize("delivery", ["lossless", "live"])
async def test_viewers_see_what_the_controller_does_to_the_end(daemon: RunningDaemon, delivery: str, tmp_path: Path) -> None:
    async with (
        Client(daemon.url, KEY) as client,
        Client(daemon.url) as stranger,
        await client.create_session("numbers", delivery=delivery) as session,  # type: ignore[arg-type]
    ):
        ready = asyncio.Event()
        walking = asyncio.create_task(walk(session, ready))
        await ready.wait()
        by_key = await client.watch(session.id)
        by_token = await stranger.watch(session.id, await client.viewer_token(session.id))
        by_token.record(tmp_path / "seen.mp4")
        enough = asyncio.Event(), asyncio.Event()
        looking = [asyncio.create_task(look(viewer, event)) for viewer, event in zip((by_key, by_token), enough, strict=True)]
        for event in enough:
            await event.wait()
        await session.end()
        seen = await asyncio.gather(*looking)
        await walking
        assert session.outcome is not None and session.outcome.reason == "ended"
        for viewer, pictures in zip((by_key, by_token), seen, strict=True):
            numbers = [known.barcode.number for known in pictures]
            assert numbers == sorted(set(numbers)) and len(numbers) >= ENOUGH_FRAMES
            if delivery == "lossless":
                # Nothing is dropped before the encoder: only one that was too slow misses some, and goes on at a key frame.
                gaps = [after for before, after in pairwise(pictures) if after.barcode.number != before.barcode.number + 1]
                assert all(after.is_key for after in gaps)
            assert pictures[-1].barcode.held == {"KeyW"}
            assert viewer.outcome is not None and viewer.outcome.last_seq == session.outcome.last_seq
            assert viewer.outcome.decoded_count == len(numbers)
        if delivery == "lossless":
            assert session.outcome.delivered is True, "viewers that acknowledge nothing take nothing from it"
        with av.open(str(tmp_path / "seen.mp4")) as file:
            recorded = [barcode_of(picture).number for picture in file.decode(video=0)]
        # A viewer that comes while all stands still keeps what leads to the picture that stands, and is shown that one alone.
        assert recorded[-len(seen[1]) :] == [known.barcode.number for known in seen[1]]


async def test_a_viewer_that_leaves_changes_nothing_and_one_that_is_cut_comes_back(daemon: RunningDaemon) -> None:
    with cuttable_proxy(daemon.port) as proxy:
        async with (
            Client(daemon.url, KEY) as client,
            Client(proxy.url, KEY) as far,
            await client.create_session("numbers", delivery="live") as session,
        ):
            ready = asyncio.Event()
            walking = asyncio.create_task(walk(session, ready))
            await ready.wait()
            async with await client.watch(session.id) as brief:
                async for _ in brief.frames():
                    break
            assert brief.outcome is not None and brief.outcome.reason == "client_left"
            async with asyncio.timeout(DEADLINE_S), await far.watch(session.id) as viewer:
                before, after = 0, 0
                async for frame in viewer.frames():
                    if viewer.num_connections == 1:
                        before = frame.seq
                        proxy.cut()
                    else:
                        after = frame.seq
                        break
            assert 0 < before < after
            assert (await client.session(session.id)).state == "streaming"
            await session.end()
            assert len(await walking) > 0


async def test_tokens_that_do_not_fit_are_refused(daemon: RunningDaemon) -> None:
    async with (
        Client(daemon.url, KEY) as client,
        Client(daemon.url) as stranger,
        await client.create_session("numbers") as session,
        await client.create_session("numbers") as other,
    ):
        token = await client.viewer_token(session.id)
        with pytest.raises(AccessError):
            await stranger.watch(other.id, token)
        with pytest.raises(AccessError):
            await stranger.watch(session.id)
        with pytest.raises(AccessError):
            await stranger.delete_session(session.id, force=True)
        with pytest.raises(NotFoundError):
            await client.watch("no-such-session")
        await session.connect()
        await client.delete_session(session.id, force=True)
        with pytest.raises(ConflictError):
            await client.viewer_token(session.id)


async def test_a_controllers_token_does_not_watch(daemon: RunningDaemon) -> None:
    """It would take the controller's place."""
    async with Client(daemon.url, KEY) as client, await client.create_session("numbers") as session:
        viewer = await client.watch(session.id, session.info.token)
        async with viewer:
            with pytest.raises(UsageError, match="controller"):
                await viewer.connect()
