"""How long the page of `attnsim explore` takes from a slider to the painted sentence.

Run `python benchmarks/explore_latency.py`. A headless Chromium moves sliders by the keyboard, a random one each time,
so that every state is new. A move lasts from its keydown event to the second animation frame after the sentence
changed, by the browser's own clock: network, answer, drawing and paint. `drag`: the next move comes as soon as the last
was painted; `pauses`: 0.6 s later, while the pictures of the last state are being answered and drawn. Target: 100 ms at
the 95th percentile, on two cores.

`--load SECONDS` needs no browser: 200 pages ask for a sentence every 4 s, first alone, then beside one page that asks
costly questions one after another, and no page may wait for another's. Timed is from the request to the whole answer.

`--streamlit PYTHON` names an interpreter that has Streamlit, in an environment of its own: the same sliders and the
same call behind a Streamlit page are then driven and timed in the same way. `python -m venv VENV` and
`VENV/bin/pip install streamlit` make one; our packages are added to its path.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1]))

from attnsim.errors import InputError
from attnsim.explore.state import FIGURES

ROOT = Path(__file__).resolve().parents[1]
MOVES = 250
FIRST = 20
"""Moves before those that are timed."""
TURNED = [key for key in FIGURES if key != "power"]
PAGES = 200
PAUSE_S = 4.0
"""Between a page's answer and its next question, under load: less than the 5 s after which the server hangs up."""
COSTLY = {"seq": "512k"}
"""With a density, which is another each time: 14 s of a core, against 7 ms of the usual question."""

STREAMLIT = """
import streamlit as st
from attnsim.explore.answers import headline
from attnsim.explore.state import FIGURES, read_state

state = {}
for key, (label, _, _) in FIGURES.items():
    value = st.slider(label, 0.25, 4.0, 1.0, 0.05, key=key)
    if value != 1:
        state[key] = f"{value:.2f}x"
st.markdown(f'<p id="sentence">{headline(read_state(state))["sentence"]}</p>', unsafe_allow_html=True)
"""

WATCH = """() => {
  const told = () => document.querySelector('#sentence')?.textContent ?? '';
  let begun = 0, before = '';
  window.moves = [];
  const pressed = (event) => event.key.startsWith('Arrow') && ([begun, before] = [event.timeStamp, told()]);
  addEventListener('keydown', pressed, true);
  new MutationObserver(() => {
    if (!begun || !told() || told() === before) return;
    const from = begun;
    begun = 0;
    requestAnimationFrame(() => requestAnimationFrame(() => window.moves.push(performance.now() - from)));
  }).observe(document.body, { childList: true, characterData: true, subtree: true });
}"""


@contextmanager
def ours() -> Iterator[str]:
    """The server of the page; its address."""
    command = [sys.executable, "-m", "attnsim", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def streamlit(python: str) -> Iterator[str]:
    """A Streamlit page with the same sliders; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join((str(ROOT), sysconfig.get_paths()["purelib"]))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.py"
        page.write_text(STREAMLIT)
        settings = {"server.headless": "true", "server.port": port, "server.address": "127.0.0.1",
                    "browser.gatherUsageStats": "false", "server.fileWatcherType": "none"}  # fmt: skip
        flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        command = [python, "-m", "streamlit", "run", str(page), *flags]
        with subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": path},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                for _ in range(300):
                    time.sleep(0.1)
                    with socket.socket() as knock:
                        if knock.connect_ex(("127.0.0.1", port)) == 0:
                            break
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()


def drive(browser: Any, url: str, moves: int, pause_s: float) -> list[float]:
    """Milliseconds from each of `moves` key presses to the painted sentence."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(url)
    page.wait_for_selector("#sentence:has-text('takes')", timeout=120_000)
    time.sleep(3)
    page.evaluate(WATCH)
    draw = random.Random(7)
    sliders = {key: page.get_by_role("slider", name=FIGURES[key][0]).first for key in TURNED}
    where = dict.fromkeys(TURNED, 0)
    for move in range(moves):
        key = draw.choice(TURNED)
        step = draw.choice([1, 1, 1, -1]) if where[key] < 12 else -1  # away from the ends of the sliders
        where[key] += step
        sliders[key].press("ArrowRight" if step > 0 else "ArrowLeft")
        end = time.monotonic() + 20
        while page.evaluate("window.moves.length") <= move:
            if time.monotonic() > end:
                raise InputError(f"{url} did not answer a move of {FIGURES[key][0]} within 20 s")
            time.sleep(0.01)
        time.sleep(pause_s)
    found = page.evaluate("window.moves")
    page.close()
    return [float(one) for one in found[FIRST:]]


async def ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], url: str, page: str, state: Any) -> int:
    """The status of a page's question."""
    read, write = connection
    where, _, token = url.removeprefix("http://").partition("/?token=")
    body = json.dumps({"state": state, "page": page, "n": time.monotonic()}).encode()
    headers = {"Host": where, "X-Attnsim-Token": token, "Content-Length": len(body)}
    head = ["POST /api/headline HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    write.write("\r\n".join(head).encode() + body)
    answer = await read.readuntil(b"\r\n\r\n")
    length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await read.readexactly(int(length.partition(b":")[2]))
    return int(answer.split()[1])


async def load(url: str, seconds: float, costly: bool) -> dict[str, Any]:
    """The times of pages that ask now and then, beside one that asks costly questions or none."""
    where = url.removeprefix("http://").partition("/")[0].split(":")
    took: list[float] = []
    statuses: dict[str, list[int]] = {"usual": [], "costly": []}
    end = time.monotonic() + seconds

    async def page(number: int) -> None:
        draw, connection = random.Random(number), await asyncio.open_connection(*where)
        await asyncio.sleep(draw.uniform(0, PAUSE_S))
        while time.monotonic() < end:
            begin = time.perf_counter()
            state = {draw.choice(TURNED): f"{draw.uniform(0.5, 2):.3f}x"}
            statuses["usual"].append(await ask(connection, url, f"page {number}", state))
            took.append(1e3 * (time.perf_counter() - begin))
            await asyncio.sleep(PAUSE_S)
        connection[1].close()

    async def slow() -> None:
        connection = await asyncio.open_connection(*where)
        for number in range(10**6):
            state = {**COSTLY, "density": f"{0.1 + number / 1000}"}
            statuses["costly"].append(await ask(connection, url, "costly", state))

    beside = asyncio.create_task(slow()) if costly else None
    await asyncio.gather(*map(page, range(PAGES)))
    if beside:
        beside.cancel()
    return {
        "pages": f"{PAGES}{' and a costly one' if costly else ''}",
        "timed": len(took),
        "refused": sum(status != 200 for status in statuses["usual"]),
        "costly": " ".join(map(str, statuses["costly"])) or "-",
        "median_ms": np.median(took),
        "p95_ms": np.quantile(took, 0.95),
        "p99_ms": np.quantile(took, 0.99),
        "worst_ms": max(took),
    }


def loaded(seconds: float) -> list[dict[str, Any]]:
    """The rows of `--load`."""
    with ours() as url:
        asyncio.run(load(url, 2 * PAUSE_S, costly=False))  # so that all that plays is there
        return [asyncio.run(load(url, seconds, costly)) for costly in (False, True)]


def driven(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of moves in a browser."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise InputError("no Chromium here; apt install chromium")
    from playwright.sync_api import sync_playwright

    rows = []
    with sync_playwright() as driver:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=chromium, args=sandbox)
        served = [("attnsim explore", ours())]
        served += [("Streamlit", streamlit(options.streamlit))] if options.streamlit else []
        for name, server in served:
            with server as url:
                for kind, pause_s in (("drag", 0.0), ("pauses", 0.6)):
                    ms = drive(browser, url, options.moves + FIRST, pause_s)
                    rows.append(
                        {
                            "page": name,
                            "moves": kind,
                            "timed": len(ms),
                            "median_ms": np.median(ms),
                            "p95_ms": np.quantile(ms, 0.95),
                            "worst_ms": max(ms),
                        }
                    )
        browser.close()
    return rows


def main() -> None:
    """Drive both pages, or load ours, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=MOVES, help=f"of each kind, after {FIRST} that are not timed")
    parser.add_argument("--load", type=float, metavar="SECONDS", help="many pages at once and no browser")
    parser.add_argument("--streamlit", metavar="PYTHON", help="an interpreter that has Streamlit")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = loaded(options.load) if options.load else driven(options)
    busy = f"load of this machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(
        json.dumps(rows, indent=1, default=float)
        if options.json
        else f"{pd.DataFrame(rows).round(0).to_string(index=False)}\n{busy}"
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"benchmark: {error}")
