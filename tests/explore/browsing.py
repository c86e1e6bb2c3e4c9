"""What a person does with the page and reads on it; nothing here knows how the page is made, but for its labels."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab

PATIENCE = 30.0
"""Seconds until a page that has not answered has failed."""


@dataclass(frozen=True)
class Served:
    """Where a server is, and what it asks for."""

    url: str
    port: int
    token: str

    def api(self, asked: str, /, **body: object) -> dict[str, Any]:
        """The answer that the page gets, asked beside it."""
        url = f"http://127.0.0.1:{self.port}/api/{asked}"
        headers = {"X-Attnsim-Token": self.token, "Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps({"n": 0, "page": "test", **body}).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            found = json.loads(answer.read())
        assert isinstance(found, dict)
        return found

    def export(self, name: str, form: str, state: dict[str, str]) -> bytes:
        """The bytes of a file that the page saves."""
        url = f"http://127.0.0.1:{self.port}/api/export"
        headers = {"X-Attnsim-Token": self.token, "Content-Type": "application/json"}
        body = json.dumps({"n": 0, "page": "test", "name": name, "format": form, "state": state, "style": "light"})
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
            return bytes(answer.read())


@dataclass
class Page:
    """The page in a tab of its own."""

    tab: Tab
    served: Served
    complaints: list[str] = field(default_factory=list)
    """What the browser found wrong: refused by the policy, exceptions. A refused state is the server's 400."""
    flying: list[int] = field(default_factory=list)
    """How many headlines were asked for at once, each time that one was."""

    @classmethod
    def opened(
        cls,
        browser: Browser,
        served: Served,
        query: str,
        width: int = 1400,
        scheme: str = "light",
        at: str = "",
        **options: Any,
    ) -> Page:
        """A page at a query, of the server or of files elsewhere (`at`)."""
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light", **options
        )
        page = cls(context.new_page(), served)
        page._listen()
        page.tab.goto(f"{at}?{query}" if at else f"{served.url}&{query}")
        return page

    def _listen(self) -> None:
        waiting = 0

        def sent(request: Any) -> None:
            nonlocal waiting
            if request.url.endswith("/api/headline"):
                waiting += 1
                self.flying.append(waiting)

        def came(request: Any) -> None:
            nonlocal waiting
            waiting -= request.url.endswith("/api/headline")

        self.tab.on("request", sent)
        self.tab.on("requestfinished", came)
        self.tab.on("requestfailed", came)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("console", lambda said: self._heard(said.type, said.text))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and "status of 400" not in text and "status of 409" not in text:
            self.complaints.append(text)

    def until(self, script: str) -> Any:
        """Wait until a script of the page says something true."""
        end = time.monotonic() + PATIENCE
        while not (found := self.tab.evaluate(script)):
            assert time.monotonic() < end, f"not within {PATIENCE:g} s: {script}"
            time.sleep(0.03)
        return found

    def settled(self) -> Page:
        """Wait until the sentence and every picture that is seen are of the newest state."""
        self.until("document.querySelector('#sentence').textContent.includes('busiest')")
        self.until("!document.querySelector('#sentence.stale')")
        self.until(
            "[...document.querySelectorAll('.card')].filter(one => one.offsetParent && one.id !== 'card-mine')"
            ".every(one => one.getAttribute('aria-busy') === 'false' || one.id === 'card-budget')"
        )
        return self

    @property
    def sentence(self) -> str:
        """The answer's first sentence, as it is read."""
        return self.tab.locator("#sentence > span").first.inner_text().strip()

    @property
    def state(self) -> dict[str, str]:
        """The state of the address."""
        pairs = urllib.parse.parse_qsl(urllib.parse.urlsplit(self.tab.url).query)
        return {key: value for key, value in pairs if key not in ("v", "cal", "token")}

    def expect(self, state: dict[str, str]) -> str:
        """Wait until the page shows the answer to a state; what it says."""
        said = str(self.served.api("headline", state=state)["sentence"])
        self.until(f"document.querySelector('#sentence').textContent.trim().startsWith({json.dumps(said)})")
        return said

    def slide(self, label: str, steps: int) -> None:
        """Move a slider by the keyboard."""
        slider = self.tab.get_by_role("slider", name=label)
        slider.focus()
        for _ in range(abs(steps)):
            slider.press("ArrowRight" if steps > 0 else "ArrowLeft")

    def write(self, label: str, text: str) -> Locator:
        """Type into a field and leave it."""
        node = self.tab.get_by_role("textbox", name=label, exact=True)
        node.fill(text)
        node.press("Tab")
        return node

    def open(self, name: str) -> None:
        """Open a tab of the page."""
        self.tab.get_by_role("tab", name=name).click()
