"""The server of `attnsim explore`, and its page in the system's Chromium."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from .asking import Server
from .browsing import Page, Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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
