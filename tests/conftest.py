"""The system's Chromium, for tests of pages; they are skipped, and say why, where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


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
