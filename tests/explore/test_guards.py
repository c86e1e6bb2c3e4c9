"""Who is answered, and that nobody gets a traceback, a file from outside the page's folder, or an answer not theirs."""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from attnsim.errors import InputError
from attnsim.explore.desk import Desk
from attnsim.explore.guards import DEEPEST, LARGEST, read_body
from attnsim.explore.server import ASKED, answered, page_files
from attnsim.explore.state import KEYS
from tests.explore.asking import OWN, PORT, TOKEN, Server

REQUESTS = 10_000
SMALL = {"heads": "1", "head_dim": "64", "seq": "128"}
"""What is answered in a moment."""
WORDS = (
    "",
    " ",
    "0",
    "-1",
    "1x",
    "2x",
    "1e999x",
    "nan",
    "inf",
    "NaN",
    "zz",
    "../../etc/passwd",
    "/etc/passwd",
    "a.yaml",
    "a.csv",
    "/etc/attnsim.yaml",
    "\u202e\x00\n",
    "💥" * 9,
    "é",
    "1" * 5_000,
    "causal, window 64",
    "h100",
    "h100-sxm5-80gb",
    "l4",
    "decode",
    "prefill",
    "training",
    "fp16",
    "bf16",
    "flash",
    "flash-attn.2",
    "naive",
    "seq",
    "density",
    "0.5",
    "1.0",
    "retuned",
    "true",
    "false",
    "%2e%2e%2f",
    "<script>alert(1)</script>",
    "'; rm -rf /",
    "{}",
    "[]",
    "null",
    "3",
    "64",
    "65,536",
)
"""Values, good and bad."""
NUMBERS: Sequence[Any] = (0, -1, 1, 64, 10**400, 1e308, -0.0, True, False, None, [], {}, [[]], {"a": 1})
DEEP = b"[" * 5_000
BODIES = (b"", b"{", b"[]", b"null", DEEP, b"\xff\xfe", b'{"state": NaN}', b'"' * 99, bytes(range(256)))
PATHS = (
    "/",
    "/index.html",
    "/page/",
    "/page/style.css",
    "/page/../server.py",
    "/page/..%2f..%2fserver.py",
    "/page//etc/passwd",
    "/page/%2e%2e/state.py",
    "/page/\x00",
    "/..",
    "//",
    "/api",
    "/api/",
    "/api/headline/",
    "/api/zz",
    "/etc/passwd",
    "*",
    "/page/vendor/../../server.py",
    "/page/é💥",
    "/favicon.ico",
    "/api/../page/index.html",
)
METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "CONNECT", "PATCH", "get", "É")
OUTSIDE = (b"root:x:", b"def application", b"import annotations", b"Traceback")


def with_header(name: str, *values: str) -> list[tuple[str, str]]:
    return [one for one in OWN if one[0] != name] + [(name, value) for value in values]


STRANGERS = {
    "no host": with_header("host"),
    "another host": with_header("host", f"evil.example:{PORT}"),
    "a host that begins alike": with_header("host", f"127.0.0.1:{PORT}.evil.example"),
    "another port": with_header("host", f"127.0.0.1:{PORT + 1}"),
    "two hosts": with_header("host", f"127.0.0.1:{PORT}", "evil.example"),
    "no token": with_header("x-attnsim-token"),
    "another token": with_header("x-attnsim-token", TOKEN[:-1] + "x"),
    "a longer token": with_header("x-attnsim-token", TOKEN + "x"),
    "two tokens": with_header("x-attnsim-token", TOKEN, "x"),
    "an empty token": with_header("x-attnsim-token", ""),
    "a token that is no ASCII": with_header("x-attnsim-token", "é"),
    "another origin": with_header("origin", "http://evil.example"),
    "no origin of a page": with_header("origin", "null"),
    "our origin by https": with_header("origin", f"https://127.0.0.1:{PORT}"),
    "two origins": with_header("origin", f"http://127.0.0.1:{PORT}", "http://evil.example"),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_has_no_answer(who: str, server: Server) -> None:
    status, headers, body = server.ask("/api/headline", json.dumps({"state": SMALL}).encode(), headers=STRANGERS[who])
    assert status == 403 and headers["content-type"] == "application/json"
    assert json.loads(body).keys() == {"ok", "error"} and b"time_s" not in body


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LocalHost:{PORT}"])
def test_the_page_itself_is_answered(host: str, server: Server) -> None:
    headers = [*with_header("host", host), ("origin", f"http://{host.lower()}")]
    status, _, body = server.ask("/api/headline", json.dumps({"state": SMALL}).encode(), headers=headers)
    assert status == 200 and json.loads(body)["ok"]


def test_the_page_is_sealed_and_alone_is_served(server: Server) -> None:
    for name, path in page_files().items():
        where = "/" if name == "index.html" else f"/page/{name}"
        status, headers, body = server.ask(where, method="GET", headers=OWN[:1])
        assert status == 200 and body == path.read_bytes()
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
    assert TOKEN.encode() not in b"".join(path.read_bytes() for path in page_files().values())


@pytest.mark.parametrize("size", [str(LARGEST + 1), "9" * 40, "-1", "1e3", ""])
def test_a_request_that_says_it_is_too_large_is_not_read(size: str, server: Server) -> None:
    status, _, body = server.ask("/api/headline", b"", headers=[*OWN, ("content-length", size)])
    assert status == 413 and b"allowed: 2,000,000 bytes" in body


def test_a_request_that_does_not_say_how_large_it_is_is_not_read_to_the_end(server: Server) -> None:
    assert server.ask("/api/check", b"x" * (LARGEST + 1))[0] == 413


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"1", b"{", b"\xff", b'{"state": NaN}', b'{"a": Infinity}', b'{"a": ' + b"1" * 9_999 + b"}", DEEP],
)
def test_what_is_no_json_object_is_told_in_a_line(body: bytes) -> None:
    with pytest.raises(InputError) as refused:
        read_body(body)
    assert "\n" not in str(refused.value)
    assert read_body(b'{"a": ' + b"[" * (DEEPEST - 1) + b"]" * (DEEPEST - 1) + b"}")


def random_body(draw: random.Random) -> bytes:
    kind = draw.random()
    if kind < 0.1:
        return draw.choice(BODIES)
    state: dict[str, Any] = {}
    for _ in range(draw.randrange(4)):
        key = draw.choice(KEYS) if draw.random() < 0.9 else draw.choice(WORDS)
        state[key] = draw.choice(WORDS) if draw.random() < 0.8 else draw.choice(NUMBERS)
    body: dict[str, Any] = {"state": SMALL | state if draw.random() < 0.9 else draw.choice(NUMBERS)}
    for key, values in (
        ("n", NUMBERS),
        ("name", (*WORDS, "units", "roofline", "headline", "mine")),
        ("format", ("csv", *WORDS)),
        ("csv", TABLES),
        ("map", ({"heads_q": "H"}, *NUMBERS)),
        ("time_unit", WORDS),
        ("file", (*WORDS, *NUMBERS)),
        ("gpu", WORDS),
        ("style", WORDS),
        ("page", NUMBERS),
    ):
        if draw.random() < 0.3:
            body[key] = draw.choice(values)
    return json.dumps(body).encode()


ASKED_FOR = [f"/api/{name}" for name in ASKED]
TABLES = (
    *WORDS,
    "B,H,N,d,ms\n1,1,64,64,1\n",
    "B,H,N,d,ms,gpu\n1,1,64,64,1,/etc/passwd.yaml\n",
    'a,"\n',
    "ms\n1\n",
    "a\x00b,ms\n1,2\n",
    "B,H,N,d,ms,gpu\n1,1,64,64,1,h100\n1,1,64,nan,inf,h100\n",
    "B,B\n1,1\n",
    "gpu,lengths,ms\nl4,/no/such/lengths.csv,1\n",
)


def test_ten_thousand_odd_requests_have_an_answer_or_a_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(10)
    statuses: dict[int, int] = {}
    headers = [*([OWN] * 40), *STRANGERS.values()]
    for _ in range(REQUESTS):
        usual = draw.random() < 0.7
        path = draw.choice(ASKED_FOR) if usual else draw.choice(PATHS)
        method = "POST" if usual else draw.choice(METHODS)
        given = draw.choice(headers)
        status, found, body = server.ask(path, random_body(draw), method, given)
        statuses[status] = statuses.get(status, 0) + 1
        assert status in (200, 400, 403, 404, 405, 413) or (status == 409 and path in ASKED_FOR), (status, body)
        assert not any(text in body for text in OUTSIDE), (path, body)
        assert given is OWN or status != 200 or not path.startswith("/api")
        if found["content-type"] == "application/json":
            told = json.loads(body, parse_constant=pytest.fail)
            assert told["ok"] is (status == 200)
            assert status == 200 or (isinstance(told["error"], str) and "\n" not in told["error"] and told["error"])
        elif status >= 400:
            assert body.count(b"\n") == 0 and body
    assert min(statuses[one] for one in (200, 400, 403, 404, 405)) > 100
    assert "Traceback" not in capsys.readouterr().err


def test_the_newest_of_many_is_answered_and_older_ones_are_let_go() -> None:
    desk = Desk(answered)

    async def drag() -> list[tuple[int, object]]:
        bodies = [{"state": SMALL | {"l2": f"{1 + number / 100}x"}, "n": number} for number in range(40)]
        return await asyncio.gather(*(desk.answer("headline", body) for body in bodies))

    answers = asyncio.run(drag())
    statuses = [status for status, _ in answers]
    assert statuses[-1] == 200 and statuses.count(409) > 30 and set(statuses) == {200, 409}
    assert answers[-1][1]["n"] == 39  # type: ignore[index]
    desk.close()


def test_two_pages_do_not_overtake_each_other() -> None:
    desk = Desk(answered)

    async def both() -> list[tuple[int, object]]:
        bodies = [{"state": SMALL, "n": number, "page": page} for page, number in (("a", 99), ("b", 1), ("c", None))]
        return await asyncio.gather(*(desk.answer("headline", body) for body in bodies))

    assert [status for status, _ in asyncio.run(both())] == [200, 200, 200]
    desk.close()


@pytest.mark.parametrize("state", [[1], True, 1, "text"])
def test_a_state_that_is_none_harms_no_other_question(state: object, server: Server) -> None:
    body = {"csv": "B,H,N,d,ms,gpu,implementation\n1,1,64,64,1,h100-sxm5-80gb,flash-attn.3\n", "state": state}
    status, _, answer = server.ask("/api/check", json.dumps(body).encode())
    assert status == 200 and json.loads(answer)["ok"]
