"""Addresses and helpers of ICE, as this server uses them and as a page gets them."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass

from aiortc import RTCIceServer

from ithaka.configs.schema import IceServerSection, ServeConfig
from ithaka.server.transports.webrtc.gathering import IceSettings


@dataclass(frozen=True, slots=True)
class IceServer:
    """As a browser's RTCPeerConnection takes it; ``username`` and ``credential`` are empty for STUN."""

    urls: tuple[str, ...]
    username: str
    credential: str


def ice_settings(config: ServeConfig) -> IceSettings:
    """A server on loopback offers loopback alone; another one all its addresses, and the one that STUN sees."""
    section = config.webrtc
    chosen = tuple(str(address) for address in section.host_candidates)
    announced = None if section.announced_address is None else str(section.announced_address)
    if config.is_loopback:
        return IceSettings(chosen or ("127.0.0.1",), (), section.udp_port_range, announced)
    urls = [url for server in section.ice_servers for url in server.urls if url.startswith("stun:")]
    return IceSettings(chosen or None, (RTCIceServer(urls),) if urls else (), section.udp_port_range, announced)


def ice_servers(config: ServeConfig, session_id: str, now_s: float) -> tuple[IceServer, ...]:
    """For a peer of this session; ``now_s`` in seconds since 1970. Passwords made from a secret hold as long as a token."""
    return tuple(
        _ice_server(section, f"{int(now_s + config.access.token_lifetime_s)}:{session_id}")
        for section in config.webrtc.ice_servers
    )


def _ice_server(section: IceServerSection, expiring_name: str) -> IceServer:
    if section.secret is None:
        return IceServer(section.urls, section.username, section.credential.get_secret_value())
    digest = hmac.digest(section.secret.get_secret_value().encode(), expiring_name.encode(), "sha1")
    return IceServer(section.urls, expiring_name, base64.b64encode(digest).decode())
