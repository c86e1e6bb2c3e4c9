"""The server of the page: Starlette behind the guards, a thread and a process that play, uvicorn on this machine."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest, shown
from attnsim.explore import answers, mine, pictures, saying, tables
from attnsim.explore.guards import LARGEST, App, Guard, read_body
from attnsim.explore.state import DEFAULTS, FIGURES, read_state

Body = Mapping[str, Any]


def _look(body: Body) -> tuple[object, object]:
    return body.get("format", "svg"), body.get("style", "light")


HOST = "127.0.0.1"
TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json",
}  # fmt: skip
"""What the files of the page are."""

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
        else tables.export(body.get("name", ""), read_state(body.get("state", {})), *_look(body))
    ),
}
"""What the page asks for."""
AT_ONCE = ("catalogue", "headline")
"""What is answered beside a picture that takes long; a search of tiles is none of it."""
NICE = by_hand(5, "so that pictures take what the sentence and the browser leave of two cores")
MOST_PAGES = by_hand(1_000, "pages and pictures whose newest question is known; beyond them an older one is answered")


class Desk:
    """Who plays what when: the headline at once, pictures beside it, one of each at a time, and of each the newest.

    Parameters
    ----------
    beside : Executor, optional
        Who draws pictures; by default a thread, which shares a core with the headline.
    """

    def __init__(self, beside: Executor | None = None) -> None:
        self.headline = ThreadPoolExecutor(1, "headline")
        self.beside = beside or ThreadPoolExecutor(1, "picture")
        self.newest: dict[tuple[str, ...], float] = {}
        self.turns: dict[Executor, asyncio.Lock] = {}

    async def answer(self, name: str, body: Body) -> tuple[int, object]:
        """Status and answer of a question, 409 for one that a newer one of the same page overtook."""
        number, page = body.get("n"), str(body.get("page", ""))[:64]
        if not isinstance(number, (int, float, type(None))):
            return 400, {"n": None, "ok": False, "error": f"n is {shown(number)}; give a number"}
        place = (name, page, str(body.get("name", ""))[:16])
        if len(self.newest) > MOST_PAGES:
            self.newest.clear()
        if number is not None:
            self.newest[place] = max(number, self.newest.get(place, number))

        loop, worker = asyncio.get_running_loop(), self.headline if _is_quick(name, body) else self.beside
        async with self.turns.setdefault(worker, asyncio.Lock()):  # what waits is not begun where it was overtaken
            if number is not None and number < self.newest.get(place, number):
                return 409, {"n": number, "ok": False, "error": "a newer question came"}
            try:
                status, found = await loop.run_in_executor(worker, answered, name, body)
            except BrokenExecutor:
                line = "the process that draws pictures has ended; start attnsim explore again"
                return 422, {"n": number, "ok": False, "error": line, "fault": True}
        if not isinstance(found, dict):
            return status, found
        return status, {"n": number, **found}

    def close(self) -> None:
        """Let go of what is still waiting."""
        for worker in (self.headline, self.beside):
            worker.shutdown(wait=False, cancel_futures=True)


def _is_quick(name: str, body: Body) -> bool:
    state = body.get("state")
    tiles = state.get("tiles") if isinstance(state, Mapping) else None
    return name in AT_ONCE and (name != "headline" or tiles in (None, "", DEFAULTS["tiles"]))


def answered(name: str, body: Body) -> tuple[int, object]:
    """Status and answer; whatever is wrong is one line, and a fault of ours is told on the terminal."""
    if name not in ASKED:
        return 404, {"ok": False, "error": f"{shown(name)} is not known; {nearest(name, ASKED)}"}
    try:
        found = ASKED[name](body)
    except InputError as error:
        return 400, {"ok": False, "error": " ".join(str(error).split())}
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        line = f"attnsim failed at this ({type(error).__name__}); the terminal says where, please report it"
        return 422, {"ok": False, "error": line, "fault": True}
    return 200, {"ok": True, **plain(found)} if isinstance(found, dict) else found


def plain(value: Any) -> Any:
    """What JSON holds: no NaN, no infinity, no types of NumPy."""
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
        status, found = await desk.answer(request.path_params["name"], read)
        if isinstance(found, tables.File):
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

    routes = [
        Route("/", file), Route("/page/{name:path}", file), Route("/api/{name}", asked, methods=["POST"]),
    ]  # fmt: skip
    inner = Starlette(routes=routes, exception_handlers={404: nothing, 405: nothing})
    inner.router.redirect_slashes = False
    return Guard(inner, token, port)


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


def _stand_back() -> None:
    """In the process of the pictures: Ctrl-C is the server's, and so are the cores where both want them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_server, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICE)


def _end_with_server() -> None:
    """However the server ends: a signal that ends it at once leaves nobody to end the process of the pictures."""
    server = parent_process()
    assert server is not None
    server.join()
    os._exit(0)


def _warm() -> None:
    """Turn each figure once, so that the compiled player is there, and leave all that to no collection of garbage."""
    for key in FIGURES:
        answered("headline", {"state": {key: "2x"}})
    gc.collect()
    gc.freeze()


def serve(listening: socket.socket, token: str) -> None:
    """Answer until interrupted."""
    import uvicorn

    desk = Desk(ProcessPoolExecutor(1, get_context("spawn"), initializer=_stand_back))
    app = application(token, listening.getsockname()[1], desk)
    settings = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    Thread(target=_warm, daemon=True).start()  # beside the first answers, not before them
    desk.beside.submit(answered, "picture", {"name": "units"})
    try:
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[listening])
    finally:
        desk.close()
