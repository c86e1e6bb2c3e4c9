"""Headless Chromium over the pipe of its DevTools protocol: no driver, no package, no network."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-extensions",
    "--disable-component-update", "--no-first-run", "--no-default-browser-check", "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 60
# Chromium reads descriptor 3 and writes 4; numbers of our own pipes may be these, so that they are moved up first.
_START = """
import fcntl, os, sys
there, back = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(there, 3)
os.dup2(back, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab."""

    def __init__(self, there: int, back: int) -> None:
        self._there, self._back, self._buffer, self._last = there, back, b"", 0
        self.events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._ask(method, self._session, **parameters)

    def _ask(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._there, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        found: dict[str, Any] = answer["result"]
        return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._back], [], [], SECONDS)
            assert ready, f"Chromium has said nothing for {SECONDS} s"
            piece = os.read(self._back, 1 << 20)
            assert piece, "Chromium has gone"
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, path: Path) -> None:
        self._load("Page.navigate", url=path.resolve().as_uri())

    def reload(self) -> None:
        self._load("Page.reload")

    def _load(self, method: str, **parameters: str) -> None:
        """Ask for a page and wait until it and its pictures are there."""
        seen = len(self.events)
        self.ask(method, **parameters)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[seen:]):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind, more in (("keyDown", text), ("keyUp", {})):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def look(self, width: int, height: int, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self) -> bytes:
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.ask("Page.printToPDF", preferCSSPageSize=True)["data"])

    def complaints(self) -> list[str]:
        """What the console shows: exceptions, refused or failed requests, warnings of the browser."""
        wanted = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in wanted]

    def addresses(self) -> list[str]:
        """Everything that was asked for, data in the page left out."""
        asked = [event["params"]["request"]["url"] for event in self.events
                 if event.get("method") == "Network.requestWillBeSent"]  # fmt: skip
        return [address for address in asked if not address.startswith("data:")]


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A page of a Chromium that is gone afterwards."""
    assert PROGRAM is not None
    theirs_in, there = os.pipe()
    back, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        started = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), PROGRAM, *FLAGS, f"--user-data-dir={home}"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(there, back)
        finally:
            os.close(there)
            os.close(back)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait(SECONDS)
