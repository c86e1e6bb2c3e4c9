"""The page of `attnsim explore` in the system's Chromium; tests are skipped, and say why, where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from .asking import Server
from .browsing import Page, Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """A server of its own, on a free port."""
    command = [sys.executable, "-m", "attnsim", "explore", "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("]"):
            line = process.stdout.readline()
            assert line, "the server ended before it said where it is"
            text += line
        try:
            yield Served(**json.loads(text)[0])
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The server's application, asked without a socket."""
    one = Server()
    yield one
    one.close()


@pytest.fixture(scope="module")  # no longer: its driver keeps an event loop, and others want theirs
def chromium() -> Iterator[Browser]:
    """The system's browser, without a window."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="the page is not driven: no playwright (pip install -e .[dev])"
    )
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("the page is not driven: no Chromium here (apt install chromium)")
    with api.sync_playwright() as driver:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=found, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Browser, served: Served) -> Iterator[Callable[..., Page]]:
    """Opens the page with a query, and sees at the end that the browser found nothing wrong with it."""
    pages: list[Page] = []

    def open_page(query: str = "", *where: Any, **options: Any) -> Page:
        pages.append(Page.opened(chromium, served, query, *where, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.tab.context.close()
        assert not page.complaints
