"""Every setting of the daemon, validated once. Durations in seconds (``_s``), sizes in bytes (``_bytes``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FilePath, IPvAnyAddress, SecretStr, field_validator, model_validator

from ithaka.configs.numbers import no_truth_value

BitsPerSecond = Annotated[int, Field(ge=50_000, le=100_000_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Preset = Literal["ultrafast", "superfast", "veryfast", "faster", "fast", "medium"]
"""Of x264, the fastest first."""

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class Section(BaseModel):
    """Unknown fields are typos, so they are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_is_true_or_false(cls, value: Any) -> Any:
        """No field is one. A family's options are its own to judge."""
        return no_truth_value(value)


class ServerSection(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65_535)
    """0 takes a free one."""
    tls_certificate: FilePath | None = None
    tls_key: FilePath | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Names a Host header may carry beside the listening address, e.g. the proxy's public name."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins beside the daemon's own page, e.g. ``https://play.example.org``."""
    max_body_bytes: int = Field(default=64 * 1024, ge=1024, le=16 * 1024 * 1024)
    head_timeout_s: Seconds = 10
    """From a connection, later from a request's first byte, to the end of its headers; as long for a TLS handshake."""
    body_timeout_s: Seconds = 30
    """From a request's headers to the end of its body."""
    max_connections: int = Field(default=1024, ge=1)
    """Open at once, streams too; a request on one beyond is refused with 503."""
    max_messages_per_s: int = Field(default=500, ge=10)
    """Of one connection; above it the connection is closed with 4429."""

    @model_validator(mode="after")
    def _tls_needs_both(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together: give both or none")
        return self


class AccessSection(Section):
    api_keys: tuple[SecretStr, ...] = ()
    """Needed beyond loopback. At least 16 characters each."""
    token_lifetime_s: Seconds = 3600

    @field_validator("api_keys")
    @classmethod
    def _keys_are_long(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any(len(key.get_secret_value()) < 16 for key in keys):
            raise ValueError("an API key has at least 16 characters; `openssl rand -hex 24` makes a good one")
        return keys


class SessionSection(Section):
    max_queued: int = Field(default=16, ge=0, le=10_000)
    queue_timeout_s: Seconds = 300
    connect_timeout_s: Seconds = 60
    """From admitted to the controller's first connection."""
    detach_timeout_s: Seconds = 30
    """How long model memory waits for a client that was lost."""
    drain_timeout_s: Seconds = 8
    """From eos to the client's fin."""
    max_duration_s: Seconds = 7200
    window_frames: int = Field(default=8, ge=2, le=256)
    """Frames that may be generated beyond the client's decoded acknowledgement; raised to two chunks where that is more."""
    retained_bytes: int = Field(default=32 * 1024 * 1024, ge=1024 * 1024)
    """Encoded frames kept for resume, per session."""
    ack_timeout_s: Seconds = 60
    """A connected client that owes an acknowledgement this long is taken for lost."""
    max_viewers: int = Field(default=64, ge=0, le=10_000)
    """Of one session; each costs one more sending of every frame."""


DeviceIndices = tuple[Annotated[int, Field(ge=0, le=63)], ...]


class StagesSection(Section):
    """Which device does which part of a model: CUDA devices by index; on the CPU, equal numbers are one process."""

    denoise: DeviceIndices = Field(min_length=1, max_length=8)
    """One for each rank; the first one's process leads."""
    decode: DeviceIndices = Field(min_length=1, max_length=1)
    """One of its own, or the first of ``denoise``."""
    verify: DeviceIndices = Field(default=(), max_length=1)
    """Decodes again what it has time for, and compares: frames that differ are counted and logged."""

    @field_validator("denoise")
    @classmethod
    def _ranks_are_apart(cls, devices: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(devices)) < len(devices):
            raise ValueError("each rank needs a device of its own, one is named twice")
        return devices

    @model_validator(mode="after")
    def _stages_are_apart(self) -> Self:
        if self.decode[0] in self.denoise[1:]:
            raise ValueError(
                f"decode: device {self.decode[0]} is that of rank {self.denoise.index(self.decode[0])}; decode on a device of "
                f"its own, or on the leader's ({self.denoise[0]})"
            )
        if set(self.verify) & {*self.denoise, *self.decode}:
            raise ValueError("verify: a second opinion needs a device that neither denoise nor decode uses")
        if self.verify and not self.is_apart:
            raise ValueError(f"verify: it compares with a decode on a device of its own, decode shares {self.decode[0]}")
        return self

    def __str__(self) -> str:
        """For a human, e.g. ``denoise 0 1, decode 2``."""
        parts = (("denoise", self.denoise), ("decode", self.decode), ("verify", self.verify))
        return ", ".join(" ".join((name, *map(str, devices))) for name, devices in parts if devices)

    @property
    def is_apart(self) -> bool:
        """Whether decode has a process of its own."""
        return self.decode[0] not in self.denoise

    @property
    def num_devices(self) -> int:
        """Devices that the machine must have."""
        return 1 + max(*self.denoise, *self.decode, *self.verify)


class ModelSection(Section):
    name: Name
    family: Name
    ranks: Literal[1, 2, 3, 4, 5, 6, 7, 8] = 1
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """``auto``: CUDA where there are as many devices as ranks (with ``stages``: as those name), else the CPU."""
    stages: StagesSection | None = None
    """Without: one process a rank, and the first decodes after each step."""
    threads_per_rank: int = Field(default=0, ge=0, le=256)
    """0: the machine's cores divided by the model's processes."""
    max_sessions: int = Field(default=1, ge=1, le=1024)
    options: dict[str, Any] = Field(default_factory=dict)
    """The family's own; it refuses what it does not know."""

    @model_validator(mode="before")
    @classmethod
    def _stages_give_the_ranks(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "ranks" in values:
            return values
        stages = values.get("stages")
        denoise = stages.get("denoise") if isinstance(stages, dict) else getattr(stages, "denoise", None)
        # Anything else is refused where it stands.
        return {**values, "ranks": len(denoise)} if isinstance(denoise, list | tuple) and 1 <= len(denoise) <= 8 else values

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        if self.stages is None:
            return self
        if self.ranks != len(self.stages.denoise):
            raise ValueError(
                f"ranks: {self.ranks}, but stages.denoise names {len(self.stages.denoise)} devices; leave ranks out"
            )
        if ":" in self.device:
            raise ValueError(f"device: {self.device!r} names a device and so does stages; set it to cuda, cpu or auto")
        return self


class EncodeSection(Section):
    crf: int = Field(default=20, ge=0, le=51)
    preset: Preset = "veryfast"
    live_preset: Preset = "superfast"
    """At a constant rate the picture is as good as with the slower ones, in half the time."""
    key_frame_interval_s: Annotated[float, Field(gt=0, le=2)] = 2.0
    live_bits_per_s: BitsPerSecond = 2_500_000
    """Where a live session begins; it follows what the controller's connection carries, between the two bounds."""
    live_min_bits_per_s: BitsPerSecond = 800_000
    live_max_bits_per_s: BitsPerSecond = 6_000_000

    @model_validator(mode="after")
    def _rates_are_in_order(self) -> Self:
        if not self.live_min_bits_per_s <= self.live_bits_per_s <= self.live_max_bits_per_s:
            raise ValueError("live_bits_per_s lies between live_min_bits_per_s and live_max_bits_per_s")
        return self


class IceServerSection(Section):
    """A STUN or TURN server, for the page and for this server. ``secret`` makes passwords that expire (coturn's
    ``static-auth-secret``); else ``username`` and ``credential`` are handed out as they are.
    """

    urls: tuple[Annotated[str, Field(pattern=r"^(stun|turns?):[^\s]+$")], ...] = Field(min_length=1)
    username: str = ""
    credential: SecretStr = SecretStr("")
    secret: SecretStr | None = None


class WebRtcSection(Section):
    host_candidates: tuple[IPvAnyAddress, ...] = ()
    """Addresses of this machine that peers may use. Empty: 127.0.0.1 where the server listens on loopback, else all others."""
    announced_address: IPvAnyAddress | None = None
    """What peers are told in place of this machine's own, where they reach it under another (NAT, a container)."""
    udp_ports: str = Field(default="", pattern=r"^(\d{1,5}-\d{1,5})?$")
    """For media, e.g. ``50000-50063``, both included: each connection takes one. Empty: as the system hands them out."""
    ice_servers: tuple[IceServerSection, ...] = ()
    connect_timeout_s: Seconds = 10
    """From the answer until media can flow."""
    max_connections: int = Field(default=64, ge=1, le=10_000)

    @field_validator("udp_ports")
    @classmethod
    def _ports_are_a_range(cls, ports: str) -> str:
        if ports:
            first, last = map(int, ports.split("-"))
            if not 1024 <= first <= last <= 65_535:
                raise ValueError("ports lie between 1024 and 65535, the lower one first")
        return ports

    @model_validator(mode="after")
    def _one_address_is_told(self) -> Self:
        if self.announced_address is not None and self.host_candidates:
            raise ValueError("announced_address stands for all of host_candidates: give one of them")
        return self

    @property
    def udp_port_range(self) -> range | None:
        if not self.udp_ports:
            return None
        first, last = map(int, self.udp_ports.split("-"))
        return range(first, last + 1)


class RecordingSection(Section):
    """Sessions created with ``record`` are kept as MP4 files. The oldest go first, where a bound is passed."""

    folder: Path | None = None
    """Without one, nothing is recorded."""
    max_bytes: int = Field(default=2 * 1024**3, ge=1024)
    """Of one recording, which ends there; the session goes on."""
    max_total_bytes: int = Field(default=20 * 1024**3, ge=1024)
    max_count: int = Field(default=200, ge=1)
    max_age_s: float = Field(default=7 * 86_400, gt=0)


class SupervisorSection(Section):
    ready_timeout_s: Seconds = 120
    heartbeat_interval_s: Seconds = 0.25
    heartbeat_timeout_s: Seconds = 2.0
    """A child that is silent this long is dead."""
    step_timeout_s: Seconds = 3.0
    """A busy rank that shows no progress this long hangs."""
    communicator_timeout_s: Seconds = 3.0
    stop_timeout_s: Seconds = 3.0
    """Of each rung: cooperative, terminate, kill."""
    restart_backoff_s: Seconds = 0.25
    """Doubles at each failure in a row, up to ``restart_backoff_max_s``."""
    restart_backoff_max_s: Seconds = 30
    max_failed_starts: int = Field(default=5, ge=1)
    """Starts in a row that fail before the model is given up."""


class LogSection(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class ServeConfig(Section):
    """The whole configuration."""

    server: ServerSection = ServerSection()
    access: AccessSection = AccessSection()
    sessions: SessionSection = SessionSection()
    models: tuple[ModelSection, ...] = (ModelSection(name="labyrinth", family="labyrinth", ranks=2),)
    encode: EncodeSection = EncodeSection()
    webrtc: WebRtcSection = WebRtcSection()
    recording: RecordingSection = RecordingSection()
    supervisor: SupervisorSection = SupervisorSection()
    log: LogSection = LogSection()

    @property
    def is_loopback(self) -> bool:
        return self.server.host in LOOPBACK_HOSTS

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        names = [model.name for model in self.models]
        if not names:
            raise ValueError("models: at least one is needed; `ithaka models` lists the families")
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"models: the name {sorted(twice)[0]!r} is used twice")
        if not self.is_loopback and not self.access.api_keys:
            raise ValueError(
                f"server.host {self.server.host!r} is reachable from other machines, so access.api_keys needs at least one "
                "key (`openssl rand -hex 24`); or listen on 127.0.0.1"
            )
        return self
