"""The page of a static build, in Chromium: what was computed beforehand is shown, the rest is greyed."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from attnsim.explore import build, pictures

from .browsing import Page, Served


def test_a_static_build_answers_what_it_holds(
    opened: Callable[..., Page], served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CASES", {"gpu": ("l4",), "model": ("llama-3-70b",), "pass": ("decode",)})
    monkeypatch.setattr(build, "TURNED", ("hbm",))
    monkeypatch.setattr(pictures, "PICTURES", {name: pictures.PICTURES[name] for name in ("units", "roofline")})
    build.build(tmp_path / "site")
    serve = functools.partial(Quiet, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = opened("gpu=l4&pass=decode", at=f"http://127.0.0.1:{server.server_port}/")
        said = page.until("document.querySelector('#sentence > span')?.textContent.trim()")
        assert said == served.api("headline", state={"gpu": "l4", "pass": "decode"})["sentence"]
        page.until("document.querySelector('#card-roofline svg') && document.querySelector('#card-units svg')")
        page.slide("HBM bandwidth", 1)
        page.expect({"gpu": "l4", "pass": "decode", "hbm": "1.5x"})
        assert page.tab.get_by_role("slider", name="L2 bandwidth").is_disabled()
        assert page.tab.get_by_role("textbox", name="Lengths").is_disabled()
        assert page.tab.get_by_role("button", name="Save Roofline as SVG").is_disabled()
        page.tab.get_by_role("tab", name="Why").click()
        page.until("document.querySelector('#card-why .alt').textContent.includes('computed beforehand')")
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
