"""The page that comes with the server, and the headers of every answer."""

from __future__ import annotations

from pathlib import Path

from tests.served import served

from ithaka.server.routes.guards import SECURITY_HEADERS


async def test_every_answer_carries_security_headers() -> None:
    async with served() as server:
        for path in ("/", "/v1/models", "/nothing", "/openapi.json"):
            headers = (await server.http.get(path)).headers
            assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
            assert headers["Cache-Control"] == "no-store"
            assert "Server" not in headers
        assert "unsafe" not in SECURITY_HEADERS["Content-Security-Policy"]


async def test_the_page_is_served_and_nothing_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html><title>Ithaka</title>")
    (folder / "page.js").write_text("export {};")
    (tmp_path / "secret.txt").write_text("no")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    async with served(page_folder=folder) as server:
        assert "<title>Ithaka" in (await server.http.get("/")).text
        script = await server.http.get("/page.js")
        assert script.headers["Content-Type"].startswith("text/javascript")
        for path in ("/secret.txt", "/link.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt"):
            assert (await server.http.get(path)).status_code == 404
        assert (await server.http.get("/v1/models")).status_code == 200


async def test_without_a_page_there_is_a_text(tmp_path: Path) -> None:
    async with served(page_folder=tmp_path / "missing") as server:
        answer = await server.http.get("/")
        assert (answer.status_code, "/v1/models" in answer.text) == (200, True)
