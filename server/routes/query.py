"""Query parameters: one that a route does not know is a typo, and of two nobody knows which counts: errors."""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from ithaka.server.errors import ApiError


def only_known_query(connection: HTTPConnection) -> None:
    """Raises ApiError. Probes and scrapers, which are not below ``/v1``, may add what they like."""
    route = connection.scope.get("route")
    if not isinstance(route, APIRoute) or not route.path.startswith("/v1/"):
        return
    known = [parameter.alias for parameter in route.dependant.query_params]
    for name in connection.query_params:
        if name not in known:
            advice = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ApiError("invalid_request", f"query.{name}: no parameter of {route.path}; {advice}", field=f"query.{name}")
        if len(connection.query_params.getlist(name)) > 1:
            raise ApiError("invalid_request", f"query.{name}: it stands there twice; give it once", field=f"query.{name}")
