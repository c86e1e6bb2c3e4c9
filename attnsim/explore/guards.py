"""Guards of the server: only this machine's page, which knows the token, is answered; others get one line."""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NoReturn

from attnsim.by_hand import by_hand
from attnsim.errors import InputError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST = by_hand(2_000_000, "bytes of a request: a table of some 20,000 timings")
DEEPEST = by_hand(20, "brackets within brackets of a request, more than any has, fewer than Python reads")
TOKEN = b"x-attnsim-token"
HEADERS = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""With every answer: nothing is loaded from elsewhere, framed or kept."""


class Guard:
    """An ASGI application behind which only the server's own page is answered.

    Parameters
    ----------
    app : callable
        What is behind it.
    token : str
        Known to whoever started the server; in the address of the page, and in a header of every question.
    port : int
        Of the server: Host and Origin name it.
    """

    def __init__(self, app: App, token: str, port: int) -> None:
        self.app, self.token = app, token
        self.hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with one line."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets: the server closes it

        async def sealed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        refused = self.refuses(scope)
        if refused:
            await _say(sealed, *refused)
            return
        await self.app(scope, receive, sealed)

    def refuses(self, scope: Scope) -> tuple[int, str] | None:
        """Status and line for a request that is none of the page's; None for one that is."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(bytes(name).lower(), []).append(bytes(value))
        own = {b"http://" + host for host in self.hosts}
        if len(hosts := headers.get(b"host", [])) != 1 or hosts[0].lower() not in self.hosts:
            return 403, "this server answers only its own address on this machine; open the one that it printed"
        if any(origin not in own for origin in headers.get(b"origin", [])):
            return 403, "this server answers only its own page"
        asking = scope["path"].startswith("/api/")
        allowed = ("POST",) if asking else ("GET", "HEAD")
        if scope["method"] not in allowed:
            return 405, f"method not allowed; allowed here: {', '.join(allowed)}"
        given = headers.get(TOKEN, [])
        if asking and not (len(given) == 1 and hmac.compare_digest(given[0], self.token.encode())):
            return 403, "the token is missing or wrong; open the address that attnsim explore printed"
        sizes = headers.get(b"content-length", [])
        if any(not size.isdigit() or len(size) > 12 or int(size) > LARGEST for size in sizes):
            return 413, f"the request is too large; allowed: {LARGEST:,} bytes"
        return None


async def _say(send: Send, status: int, line: str) -> None:
    body = json.dumps({"ok": False, "error": line}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def read_body(body: bytes) -> dict[str, Any]:
    """The object of a request.

    Raises
    ------
    InputError
        For what is no JSON object, with numbers that JSON has not, or with brackets too deep.
    """
    try:
        text = body.decode()
        if _depth(text) > DEEPEST:
            raise ValueError("brackets too deep")
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except ValueError as error:
        raise InputError(f"the request is no JSON ({' '.join(str(error).split())[:80]}); send one object") from None
    if not isinstance(found, dict):
        raise InputError('the request is no JSON object; send {"state": {...}}')
    return found


def _depth(text: str) -> int:
    depth = deepest = 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        deepest = max(deepest, depth)
    return deepest


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no finite number")


def _finite(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _refuse(text)
