"""The server of the page: Starlette behind the guards, and uvicorn on this machine."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from attnsim.errors import InputError, nearest, shown
from attnsim.explore import answers, mine, pictures, saying
from attnsim.explore.desk import MEMORY, Body, Desk
from attnsim.explore.guards import LARGEST, App, Guard, read_body
from attnsim.explore.state import read_state


def _look(body: Body) -> tuple[object, object]:
    return body.get("format", "svg"), body.get("style", "light")


HOST = "127.0.0.1"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
"""Media types of the page's files."""

ASKED: Mapping[str, Callable[[Body], object]] = {
    "catalogue": lambda body: (
        answers.catalogue(read_state(body.get("state", {}))) | {"pictures": list(pictures.PICTURES)}
    ),
    "headline": lambda body: answers.headline(read_state(body.get("state", {}))),
    "picture": lambda body: pictures.shown_as(body.get("name", ""), read_state(body.get("state", {}))).to_dict(),
    "said": lambda body: (
        mine.said(mine.Mine.read(body))
        if body.get("name") == mine.NAME
        else saying.said(body.get("name", "headline"), read_state(body.get("state", {})))
    ),
    "check": lambda body: mine.check(mine.Mine.read(body)),
    "export": lambda body: (
        mine.export(mine.Mine.read(body), *_look(body))
        if body.get("name") == mine.NAME
        else saying.export(body.get("name", ""), read_state(body.get("state", {})), *_look(body))
    ),
}
"""Answers, by the name that the page asks for."""


def answered(name: str, body: Body) -> tuple[int, object]:
    """Status and answer; whatever is wrong is one line, and a fault of ours is told on the terminal."""
    if name not in ASKED:
        return 404, {"ok": False, "error": f"{shown(name)} is not known; {nearest(name, ASKED)}"}
    try:
        found = ASKED[name](body)
    except InputError as error:
        return 400, {"ok": False, "error": " ".join(str(error).split())}
    except MemoryError:
        most = f"{MEMORY >> 30} GiB"
        return 400, {"ok": False, "error": f"this needs more than {most}, all that the page has; ask for less of it"}
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        line = f"attnsim failed at this ({type(error).__name__}); the terminal says where, please report it"
        return 422, {"ok": False, "error": line, "fault": True}
    return 200, {"ok": True, **plain(found)} if isinstance(found, dict) else found


def plain(value: Any) -> Any:
    """A value as JSON holds it: no NaN, no infinity, no types of NumPy."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page_files() -> dict[str, Path]:
    """The files of the page by their address; nothing else is ever read."""
    root = Path(str(resources.files("attnsim.explore"))) / "page"
    return {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.suffix in TYPES}


def application(token: str, port: int, desk: Desk) -> App:
    """The whole server as an ASGI application."""
    files = page_files()

    async def asked(request: Request) -> Response:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > LARGEST:
                return _json(413, {"ok": False, "error": f"the request is too large; allowed: {LARGEST:,} bytes"})
        try:
            read = read_body(bytes(body))
        except InputError as error:
            return _json(400, {"ok": False, "error": str(error)})
        answering = asyncio.create_task(desk.answer(request.path_params["name"], read))
        gone = asyncio.create_task(_until_gone(request))
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            answering.cancel()  # which ends what plays for a page that has gone
        if not answering.done():
            return Response(status_code=499)
        status, found = answering.result()
        if isinstance(found, saying.File):
            where = {"content-disposition": f'attachment; filename="{found.name}"'}
            return Response(found.data, status, where, found.kind)
        return _json(status, found)

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            return PlainTextResponse("no such file; the page is at /", 404)
        return Response(files[name].read_bytes(), media_type=TYPES[files[name].suffix])

    async def nothing(request: Request, error: Exception) -> Response:
        return PlainTextResponse("nothing is here; the page is at /", 404)

    routes = [Route("/", file), Route("/page/{name:path}", file), Route("/api/{name}", asked, methods=["POST"])]
    inner = Starlette(routes=routes, exception_handlers={404: nothing, 405: nothing})
    inner.router.redirect_slashes = False
    return Guard(inner, token, port)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(status: int, found: object) -> Response:
    text = json.dumps(found, allow_nan=False, ensure_ascii=True)
    return Response(text, status, media_type="application/json")


def listen(port: int) -> socket.socket:
    """A socket on this machine's own address, on a free port where 0 is asked for.

    Raises
    ------
    InputError
        Where the port is taken.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()  # so that a browser that is quick waits
    except (OSError, OverflowError) as error:
        found.close()
        why = getattr(error, "strerror", None) or error
        raise InputError(f"--port {port} cannot be had ({why}); give another, or leave it out") from None
    return found


def serve(listening: socket.socket, token: str) -> None:
    """Answer until interrupted."""
    desk = Desk(answered)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            desk.close()  # so that no answer is waited for
            super().handle_exit(sig, frame)

    app = application(token, listening.getsockname()[1], desk)
    settings = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    try:
        with suppress(KeyboardInterrupt):
            Server(settings).run(sockets=[listening])
    finally:
        desk.close()
