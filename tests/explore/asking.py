"""Requests to the server in this process, and the command line beside them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from attnsim.explore.desk import Desk
from attnsim.explore.server import answered, application

PORT, TOKEN = 8123, "a-token-of-the-tests"
OWN = (("host", f"127.0.0.1:{PORT}"), ("x-attnsim-token", TOKEN))


class Server:
    """The application, asked without a socket."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.desk = Desk(answered)
        self.app = application(TOKEN, PORT, self.desk)

    def ask(
        self, path: str, body: bytes = b"", method: str = "POST", headers: Sequence[tuple[str, str]] = OWN
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        return self.loop.run_until_complete(self.request(path, body, method, headers))

    async def request(
        self, path: str, body: bytes, method: str, headers: Sequence[tuple[str, str]]
    ) -> tuple[int, dict[str, str], bytes]:
        sent: list[Any] = []
        pieces = [body[:65536], *([body[65536:]] if len(body) > 65536 else [])]
        waiting = [
            {"type": "http.request", "body": piece, "more_body": at < len(pieces) - 1}
            for at, piece in enumerate(pieces)
        ]

        async def receive() -> Any:
            if not waiting:
                await asyncio.Event().wait()  # whoever asks stays
            return waiting.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode("utf-8", "surrogatepass"),
            "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
            "headers": [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers],
            "client": ("127.0.0.1", 5), "server": ("127.0.0.1", PORT),
        }  # fmt: skip
        await self.app(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:])

    def api(self, asked: str, state: Mapping[str, object] | None = None, /, **body: object) -> dict[str, Any]:
        """The answer to a question of the page's, as JSON."""
        text = json.dumps({"state": state or {}, **body}).encode()
        found = json.loads(self.ask(f"/api/{asked}", text)[2], parse_constant=_no_number)
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        self.desk.close()
        self.loop.close()


def _no_number(constant: str) -> None:
    raise AssertionError(f"{constant} in JSON")
