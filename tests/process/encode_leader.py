"""A leader that publishes numbered frames of one session until it is killed."""

from __future__ import annotations

import sys

from tests.process.encode_rig import picture, publish_frame

from ithaka.comm_ext.channel.host_shm import open_producer

if __name__ == "__main__":
    session_id, *fds = sys.argv[1:]
    leader = open_producer([int(fd) for fd in fds])
    for seq in range(1, 60_000):
        publish_frame(leader, session_id, seq, picture(seq))
