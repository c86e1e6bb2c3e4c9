"""Worker processes: a slow question holds up no other page, and ends with its own."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any
from weakref import WeakValueDictionary

from attnsim.by_hand import by_hand
from attnsim.errors import shown
from attnsim.explore.state import DEFAULTS

Body = Mapping[str, Any]
Answered = Callable[[str, Body], tuple[int, object]]

AT_ONCE = ("catalogue", "headline")
"""Questions that are answered while a picture takes long; a search of tiles is not among them."""
NICE = by_hand(5, "so that pictures take what the sentence and the browser leave of two cores")
MOST_QUICK = by_hand(4, "processes of sentences: three pages may have slow ones, and a fourth waits for none of them")
MOST_BESIDE = by_hand(2, "processes of pictures: as many as the usual cores")
QUICK_S = by_hand(30.0, "seconds that a sentence may take: a thousand times the usual")
BESIDE_S = by_hand(120.0, "seconds that a picture may take: on a busy machine the longest of the usual ones take 20")
MEMORY = by_hand(3 << 30, "bytes of a process that plays, ten times what it has before the first question")
MOST_PAGES = by_hand(1_000, "pages and pictures whose newest question is known; beyond them an older one is answered")

COPIED = get_context("forkserver")
"""Each process that plays is a copy of one that has played: it begins within milliseconds."""
COPIED.set_forkserver_preload(["attnsim.explore.warm"])


class Worker:
    """A process that plays one question after another, until it is ended.

    Parameters
    ----------
    answered : callable
        Gives status and answer for the name and the body of a question.
    nice : int
        How far it stands back where others want the cores.
    """

    def __init__(self, answered: Answered, nice: int) -> None:
        self.pipe, theirs = COPIED.Pipe()
        self.ready, self.begun = asyncio.Event(), False
        self.process = COPIED.Process(target=_play, args=(answered, theirs, nice))
        Thread(target=self._start, args=(theirs,), daemon=True).start()  # the first waits for what it is a copy of

    def _start(self, theirs: Connection) -> None:
        self.process.start()
        theirs.close()

    async def begin(self) -> None:
        """Wait until it can play, which takes the first one seconds.

        Raises
        ------
        EOFError, OSError
            Where the process has ended.
        """
        if not self.begun:
            self.begun = await self._next()

    async def answer(self, name: str, body: Body) -> tuple[int, object]:
        """Status and answer.

        Raises
        ------
        EOFError, OSError
            Where the process has ended.
        """
        self.pipe.send((name, body))
        found: tuple[int, object] = await self._next()
        return found

    async def _next(self) -> Any:
        loop, place = asyncio.get_running_loop(), self.pipe.fileno()
        self.ready.clear()
        loop.add_reader(place, self.ready.set)
        try:
            await self.ready.wait()
        finally:
            loop.remove_reader(place)
        return self.pipe.recv()

    def end(self) -> None:
        """End it, whatever it does, and the processes that it started."""
        if self.process.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()  # one that has no group yet
        self.pipe.close()  # one that has not begun ends by this
        self.ready.set()


def _play(answered: Answered, pipe: Connection, nice: int) -> None:
    os.setsid()  # Ctrl-C is the server's
    os.nice(nice)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    Thread(target=_end_with_server, daemon=True).start()
    with suppress(EOFError, OSError):
        pipe.send(True)
        while True:
            pipe.send(answered(*pipe.recv()))


def _end_with_server() -> None:
    """However the server ends: a signal that ends it at once leaves nobody to end what plays."""
    server = parent_process()
    assert server is not None
    server.join()
    os.killpg(0, signal.SIGKILL)


class Workers:
    """Processes that play questions of a kind.

    Parameters
    ----------
    answered, nice
        As for `Worker`.
    most : int
        How many at once.
    deadline_s : float
        How long one question may take.
    """

    def __init__(self, answered: Answered, nice: int, most: int, deadline_s: float) -> None:
        self.answered, self.nice, self.deadline_s = answered, nice, deadline_s
        self.places = asyncio.Semaphore(most)
        self.idle, self.busy = [Worker(answered, nice)], set[Worker]()

    async def answer(self, name: str, body: Body) -> tuple[int, object]:
        """Status and answer; a process whose answer nobody waits for any more is ended.

        Raises
        ------
        TimeoutError
        EOFError, OSError
            Where the process has ended.
        """
        worker = self.idle.pop() if self.idle else Worker(self.answered, self.nice)
        self.busy.add(worker)
        try:
            await worker.begin()
            async with asyncio.timeout(self.deadline_s):
                found = await worker.answer(name, body)
        except BaseException:
            worker.end()
            raise
        finally:
            self.busy.discard(worker)
        self.idle.append(worker)
        return found

    def close(self) -> None:
        """End all of them."""
        for worker in (*self.idle, *self.busy):
            worker.end()
        self.idle.clear()


class Desk:
    """Sentences are played at once, pictures beside them; of each page one at a time, and of each kind the newest.

    Parameters
    ----------
    answered : callable
        As for `Worker`.
    quick_s, beside_s : float
        How long a sentence and a picture may take.
    """

    def __init__(self, answered: Answered, quick_s: float = QUICK_S, beside_s: float = BESIDE_S) -> None:
        self.quick = Workers(answered, 0, MOST_QUICK, quick_s)
        self.beside = Workers(answered, NICE, MOST_BESIDE, beside_s)
        self.newest: dict[tuple[str, ...], float] = {}
        self.turns: WeakValueDictionary[tuple[Workers, str], asyncio.Lock] = WeakValueDictionary()
        self.closed = False

    async def answer(self, name: str, body: Body) -> tuple[int, object]:
        """Status and answer of a question, 409 for one that a newer one of the same page overtook."""
        number, page = body.get("n"), str(body.get("page", ""))[:64]
        if not isinstance(number, (int, float, type(None))):
            return 400, {"n": None, "ok": False, "error": f"n is {shown(number)}; give a number"}
        place = (name, page, str(body.get("name", ""))[:16])
        if len(self.newest) > MOST_PAGES:
            self.newest.clear()
        if number is not None:
            self.newest[place] = max(number, self.newest.get(place, number))

        workers = self.quick if _is_quick(name, body) else self.beside
        turn = self.turns.setdefault((workers, page), asyncio.Lock())
        async with turn, workers.places:  # what waits is not begun where it was overtaken
            if number is not None and number < self.newest.get(place, number):
                return 409, {"n": number, "ok": False, "error": "a newer question came"}
            status, found = await self._played(workers, name, body)
        if not isinstance(found, dict):
            return status, found
        return status, {"n": number, **found}

    async def _played(self, workers: Workers, name: str, body: Body) -> tuple[int, object]:
        try:
            if not self.closed:
                return await workers.answer(name, body)
        except TimeoutError:
            text = f"this takes more than {workers.deadline_s:g} s, which is all that the page has; ask for less of it"
            return 400, {"ok": False, "error": f"{text}, or on the command line"}
        except (EOFError, OSError):
            pass
        return 422, {"ok": False, "error": "the process that played this has ended; ask again", "fault": True}

    def close(self) -> None:
        """End all that plays or waits."""
        self.closed = True
        self.quick.close()
        self.beside.close()


def _is_quick(name: str, body: Body) -> bool:
    state = body.get("state")
    tiles = state.get("tiles") if isinstance(state, Mapping) else None
    return name in AT_ONCE and (name != "headline" or tiles in (None, "", DEFAULTS["tiles"]))
