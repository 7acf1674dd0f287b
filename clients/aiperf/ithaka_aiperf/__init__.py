"""AIPerf's view of the Ithaka daemon: a request is a session, a chunk of its answer is a frame."""
