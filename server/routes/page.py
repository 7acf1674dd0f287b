"""The page that comes with the server, from package data. Its headers are those of ``guards``."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

PAGE_FOLDER = Path(__file__).parent.parent / "page"
_NO_PAGE = """\
Ithaka is running; this installation has no page.

  /v1/models    what can be served
  /openapi.json the whole interface
  /readyz       whether a session can be taken
"""


def page_app(folder: Path = PAGE_FOLDER) -> ASGIApp:
    """Serves the folder at ``/``; a short text where it has no index.html."""
    if (folder / "index.html").is_file():
        return StaticFiles(directory=folder, html=True, follow_symlink=False)
    return Starlette(routes=[Route("/", _text)])


async def _text(request: Request) -> Response:
    return PlainTextResponse(_NO_PAGE)
