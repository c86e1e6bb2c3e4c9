"""A slow question: no other page waits for it, and it ends with its page, at its deadline and with the server."""

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from attnsim.explore import server as module
from attnsim.explore.desk import MEMORY, Desk, Worker
from tests.explore.asking import OWN, PORT, TOKEN, Server
from tests.explore.test_answers import running

__all__ = ["running"]
WAIT_S = 0.2
"""How long another page's sentence may wait for a slow one."""


def answered(name: str, body: Any) -> tuple[int, object]:
    """Stands for what plays: as slow as it is asked to be; tells its process, and that of a command that it runs."""
    told = body["state"]
    if "file" in told:
        with subprocess.Popen(["sleep", "60"]) as command:
            Path(told["file"]).write_text(f"{os.getpid()} {command.pid}")
    if told.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if told.get("memory"):
        try:
            bytearray(told["memory"])
        except MemoryError:
            return 400, {}
    time.sleep(told.get("sleep", 0))
    return 200, {"ok": True, "pid": os.getpid()}


@pytest.fixture
def desk() -> Iterator[Desk]:
    one = Desk(answered, quick_s=20)
    yield one
    one.close()


def ask(desk: Desk, page: str, name: str = "headline", **state: object) -> Any:
    return desk.answer(name, {"state": state, "page": page, "n": 1})


def test_no_sentence_waits_for_a_slow_one_of_another_page(desk: Desk) -> None:
    async def quickest() -> float:
        assert (await ask(desk, "first"))[0] == 200
        slow = [asyncio.create_task(ask(desk, f"slow {number}", sleep=60)) for number in range(3)]
        await asyncio.sleep(0.1)
        took = []
        for number in range(5):
            begin = monotonic()
            assert (await ask(desk, f"quick {number}"))[0] == 200
            took.append(monotonic() - begin)
        for one in slow:
            one.cancel()
        await asyncio.wait(slow)
        return min(took)

    assert asyncio.run(quickest()) < WAIT_S


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    except (ProcessLookupError, FileNotFoundError):  # it may end between the two
        return True
    return state.startswith("Z")  # nobody has asked how it ended


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


def test_a_page_that_has_gone_ends_what_plays_for_it(desk: Desk, tmp_path: Path) -> None:
    file, app = tmp_path / "pids", module.application(TOKEN, PORT, desk)
    body = json.dumps({"state": {"file": str(file)}}).encode()
    sent = []

    async def leave() -> list[int]:
        waiting = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            await until(lambda: len(waiting) > 1 or bool(file.exists() and file.read_text()))
            return waiting.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(name.encode(), value.encode()) for name, value in OWN]
        scope = {"type": "http", "method": "POST", "path": "/api/headline", "headers": headers, "query_string": b""}
        await app(scope, receive, send)
        pids = [int(pid) for pid in file.read_text().split()]
        await until(lambda: all(map(ended, pids)))
        assert (await ask(desk, "another"))[0] == 200
        return pids

    assert len(asyncio.run(leave())) == 2 and sent[0]["status"] == 499


def test_what_takes_longer_than_its_deadline_is_ended_in_a_line(tmp_path: Path) -> None:
    desk, file = Desk(answered, quick_s=2), tmp_path / "pids"

    async def late() -> tuple[int, Any]:
        await ask(desk, "page")
        status, found = await ask(desk, "page", file=str(file))
        await until(lambda: all(ended(int(pid)) for pid in file.read_text().split()))
        return status, found

    status, found = asyncio.run(late())
    assert status == 400 and found["error"].startswith("this takes more than 2 s") and "\n" not in found["error"]
    desk.close()


def test_what_plays_may_take_its_time_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first start compiles, which takes many seconds on a busy machine; the deadline is the question's."""
    start = Worker._start

    def late(*given: Any) -> None:
        time.sleep(1)
        start(*given)

    monkeypatch.setattr(Worker, "_start", late)
    desk = Desk(answered, quick_s=0.8)
    assert asyncio.run(ask(desk, "page"))[0] == 200
    desk.close()


def test_a_process_that_ended_is_told_and_another_takes_its_place(desk: Desk) -> None:
    async def both() -> tuple[tuple[int, Any], tuple[int, Any]]:
        return await ask(desk, "page", kill=True), await ask(desk, "page")

    (status, found), (after, _) = asyncio.run(both())
    assert (status, after) == (422, 200) and found["error"] == "the process that played this has ended; ask again"


def test_memory_is_bounded(desk: Desk) -> None:
    async def both() -> list[int]:
        return [(await ask(desk, "page", memory=size))[0] for size in (MEMORY // 2, MEMORY)]

    assert asyncio.run(both()) == [200, 400]


def test_what_needs_more_memory_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.ASKED, "headline", lambda body: bytearray(1 << 62))
    status, found = module.answered("headline", {})
    assert status == 400 and isinstance(found, dict) and "needs more than 3 GiB" in found["error"]


@pytest.mark.parametrize("body", [b'{"n": 1e999}', b'{"n": -1e999, "state": {}}', b'{"state": {"seq": 1e400}}'])
def test_a_number_without_end_is_refused_and_the_page_goes_on(body: bytes, server: Server) -> None:
    status, _, told = server.ask("/api/headline", body)
    assert status == 400 and b"is no finite number" in told
    assert server.api("headline", {"heads": "1", "head_dim": "64", "seq": "128"}, n=5)["ok"]


def test_ctrl_c_ends_the_server_whatever_plays(running: subprocess.Popen[str]) -> None:
    assert running.stdout is not None
    (told,) = json.loads("".join(iter(running.stdout.readline, "]\n")) + "]")

    def post(name: str, body: dict[str, object]) -> bytes:
        url, headers = f"http://127.0.0.1:{told['port']}/api/{name}", {"X-Attnsim-Token": told["token"]}
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            return bytes(answer.read())

    def ignored(*given: Any) -> None:
        with suppress(OSError):
            post(*given)

    assert json.loads(post("headline", {}))["ok"]
    long = {"space": "l2,hbm,exp,sms,smem", "seq": "32768", "mask": "causal, strided 512"}
    asked = [("picture", {"name": "budget", "page": page, "state": long}) for page in ("a", "b", "c")]
    asked += [("headline", {"page": "d", "state": {"seq": "256k", "density": "0.1"}})]
    for one in asked:
        Thread(target=ignored, args=one, daemon=True).start()
    time.sleep(1)
    begin = monotonic()
    running.send_signal(signal.SIGINT)
    found = running.communicate(timeout=60)
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # others may want the cores that the end needs
    assert monotonic() - begin < 2 * busy and found == ("", "") and running.returncode == 0
