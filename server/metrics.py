"""What Prometheus reads. A registry of its own, so that several servers can live in one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sessions = Gauge("ithaka_sessions", "Sessions now, by state.", ["state"], registry=self.registry)
        self.queued = Gauge("ithaka_queue_length", "Sessions that wait for a place.", ["model"], registry=self.registry)
        self.places = Gauge("ithaka_places_used", "Places taken in a model.", ["model"], registry=self.registry)
        self.model_ready = Gauge(
            "ithaka_model_ready", "1 while the model can take a session.", ["model"], registry=self.registry
        )
        self.model_restarts = Gauge(
            "ithaka_model_restarts", "Restarts of the model's group.", ["model"], registry=self.registry
        )
        self.created = Counter("ithaka_sessions_created", "Sessions accepted.", ["model"], registry=self.registry)
        self.refused = Counter("ithaka_sessions_refused", "Sessions turned away.", ["code"], registry=self.registry)
        self.ended = Counter("ithaka_sessions_ended", "Sessions ended.", ["reason", "delivered"], registry=self.registry)
        self.generated = Counter(
            "ithaka_frames_generated", "Encoded frames from the engine.", ["model"], registry=self.registry
        )
        self.sent = Counter(
            "ithaka_frames_sent", "Frames handed to carriers, re-sent ones too.", ["role"], registry=self.registry
        )
        self.sent_bytes = Counter("ithaka_sent_bytes", "Payload bytes handed to carriers.", ["role"], registry=self.registry)
        self.decoded = Counter("ithaka_frames_decoded", "Frames acknowledged as decoded.", ["model"], registry=self.registry)
        self.skipped = Counter(
            "ithaka_carrier_frames_skipped", "Encoded frames that a lagging carrier did not get.", registry=self.registry
        )
        self.dropped = Counter(
            "ithaka_frames_dropped", "Frames dropped in front of the encoder.", ["model"], registry=self.registry
        )
        self.compared = Counter(
            "ithaka_frames_compared",
            "Frames that a verify stage decoded a second time.",
            ["model", "outcome"],
            registry=self.registry,
        )
        self.webrtc_connects = Counter(
            "ithaka_webrtc_connects", "WebRTC connections that came up, or did not.", ["outcome"], registry=self.registry
        )
        self.violations = Counter(
            "ithaka_connection_errors", "Connections ended by an error.", ["code"], registry=self.registry
        )
        self.connections = Gauge("ithaka_connections", "Connections open now.", ["role"], registry=self.registry)
        self.step_s = Histogram(
            "ithaka_step_seconds", "One chunk of one session.", ["model"], buckets=_LATENCY_S, registry=self.registry
        )
        self.decoded_after_s = Histogram(
            "ithaka_frame_decoded_seconds",
            "From a frame's generation to its decoded acknowledgement.",
            ["model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.round_trip_s = Histogram(
            "ithaka_ping_seconds", "Ping to pong, through the client's code.", buckets=_LATENCY_S, registry=self.registry
        )

    def text(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
