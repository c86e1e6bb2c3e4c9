"""The sentence, the controls, one's own timings, and who starts the server."""

import ast
import json
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import pytest

import attnsim
from attnsim.cli import main
from attnsim.explore.answers import headline, kernels
from attnsim.explore.pictures import PICTURES
from attnsim.explore.state import FIGURES, read_state
from attnsim.models.hardware.units import UNITS
from tests.explore.asking import Server

PACKAGE = Path(attnsim.__file__).parent
ARCHITECT = {"l2": "2x", "exp": "1.5x", "hbm": "6TB/s"}


def test_the_sentence_has_time_ratio_and_busiest_unit_with_their_ranges() -> None:
    found = headline(read_state(ARCHITECT))
    sentence = str(found["sentence"])
    assert "hbm.bandwidth = 6 TB/s, l2.bandwidth = 19.4 TB/s, sm.exp_rate = 24 op/clk" in sentence
    assert sentence.count("(") == 3 and "90 % range" in sentence and "as fast as unchanged" in sentence
    assert sentence.endswith(f"busiest: {found['busiest']}.")
    assert found["ghost"] and found["level"] == "extrapolated"


def test_a_question_too_large_for_the_memory_is_told(server: Server) -> None:
    found = server.api("headline", {"gpu": "l4", "seq": "8m", "batch": "64"})
    assert found["ok"] and found["time_s"]["value"] is None and "does not fit" in found["sentence"]
    assert not server.api("picture", {"gpu": "l4", "seq": "8m", "batch": "64"}, name="units")["ok"]


def test_the_levers_say_the_next_one(server: Server) -> None:
    found = server.api("picture", {"seq": "512", "l2": "1.1x"}, name="levers")
    assert found["next_lever"] == found["alt"] and found["next_lever"] in found["sentences"]


def test_other_tiles_are_in_the_sentence_and_pictures_say_that_they_have_none(server: Server) -> None:
    state = {"sms": "2x", "l2": "3x", "tiles": "retuned", "seq": "2048"}
    gpu = attnsim.load_gpu("h100-sxm5-80gb").replace({"l2.bandwidth": "3x", "sm.count": "2x"})
    found = attnsim.predict(read_state(state).question, gpu, tiles="retuned", baseline=False)
    told = server.api("headline", state)
    assert told["time_s"]["value"] == found.time_s
    before = attnsim.predict(read_state(state).question, "h100-sxm5-80gb", tiles="retuned", baseline=False)
    assert told["ratio"]["value"] == pytest.approx((before.time_s or 0) / (found.time_s or 1))
    assert "as fast as unchanged with retuned tiles too" in told["sentence"]
    assert "shipped tiles" in server.api("picture", state, name="units")["caption"]
    assert not server.api("headline", state | {"tiles": "any"})["ok"]


def test_the_catalogue_has_every_figure_with_its_source(server: Server) -> None:
    found = server.api("catalogue", {"gpu": "a100-sxm4-80gb", "dtype": "fp16"})
    gpu = attnsim.load_gpu("a100-sxm4-80gb")
    assert [one["key"] for one in found["figures"]] == list(FIGURES) and found["pictures"] == list(PICTURES)
    for one in found["figures"]:
        figure = gpu.provenance[one["path"]]
        assert (one["si"], one["kind"], one["source"]) == (gpu.get(one["path"]), figure.kind, figure.source)
        assert one["source"] and one["value"] and one["low"] < 1 < one["high"]
    assert set(found["names"]) == set(UNITS) == set(found["colours"]["dark"]["units"])
    names = [one["id"] for one in found["kernels"]]
    assert "flash-attn.2" in names and "flash-attn.3" not in names and found["refused"] == ""
    assert all(one["code"] and one["trust"].startswith(one["level"]) for one in found["kernels"])
    assert "heads" in server.api("catalogue", {"tp": "3"})["refused"]


@pytest.mark.parametrize(
    "given",
    [{}, {"pass": "decode"}, {"mask": "causal, strided 512"}, {"model": "deepseek-v3", "pass": "decode"}],
    ids=str,
)
def test_every_kernel_of_the_picker_answers(given: dict[str, str], server: Server) -> None:
    found = kernels(read_state(given))
    assert found
    for one in found:
        assert server.api("headline", given | {"kernel": one.name})["ok"], one.name


def test_a_slider_is_answered_fast(server: Server) -> None:
    """100 ms with network and drawing, at the 95th percentile; here alone, and the median."""
    server.api("headline", ARCHITECT)
    took = []
    for number in range(40):
        begin = perf_counter()
        assert server.api("headline", ARCHITECT | {"l2": f"{1 + number / 37:.3f}x"})["ok"]
        took.append(perf_counter() - begin)
    assert sorted(took)[20] < 0.1


MINE = """B,H,N,d,latency (ms),causal,gpu,kernel
2,16,4096,128,1.9,1,a100-sxm4-80gb,flash-attn.2
2,16,2048,128,0.55,1,a100-sxm4-80gb,flash-attn.2
2,16,2048,128,,1,a100-sxm4-80gb,flash-attn.2
"""


def test_ones_own_timings_are_checked_as_on_the_command_line(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.csv").write_text(MINE)
    assert main(["check", str(tmp_path / "mine.csv"), "--map", "implementation=kernel", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    found = server.api("check", csv=MINE, map={"implementation": "kernel"})
    assert found["ok"] and found["alt"].startswith("2 rows: mean error ")
    assert found["mapping"] == [
        {key: value for key, value in row.items() if key != "table"} for row in rows if row["table"] == "mapping"
    ]
    lines = {row["line"]: row for row in rows if row["table"] == "row"}
    assert [row["line"] for row in found["rows"]] == [2, 3] and list(lines) == [2, 3, 4]
    for row in found["rows"]:
        assert {row["measured_s"], row["predicted_s"]} <= {
            value for value in lines[row["line"]].values() if isinstance(value, float)
        }
    assert [one["line"] for one in found["refused"]] == [4]


def test_a_check_is_said_and_saved_as_the_command_has_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my times.csv").write_text(MINE)
    asked = {
        "name": "mine",
        "csv": MINE,
        "file": "my times.csv",
        "map": {"implementation": "kernel"},
        "gpu": "h100-sxm5-80gb",
    }
    told = server.api("said", **asked)
    assert main(shlex.split(told["command"])[1:]) == 1
    for form in ("svg", "csv"):
        status, _, data = server.ask("/api/export", json.dumps({**asked, "format": form}).encode())
        assert status == 200 and data == Path(f"check.{form}").read_bytes()
    names: dict[str, object] = {}
    exec(told["python"], names)
    assert Path("check.svg").read_bytes() and str(names["found"]).startswith("<Check of 3 rows: mean error ")
    assert "a file; the page reads none" in server.api("check", csv=MINE, gpu="mine.yaml")["error"]
    assert server.api("check", csv=[], map={})["error"] == "csv is []; give a text"


def test_the_page_names_a_row_that_cannot_be_right(server: Server) -> None:
    row = "h100-sxm5-80gb,flash-attn.3,1,16,16384,128,1,fp16"
    head = "gpu,kernel,batch,heads,seq,head_dim,causal,dtype,ms\n"
    found = server.api("check", csv=f"{head}{row},1.78\n{row},1780\n{row},0.001\n")
    assert sorted(one["line"] for one in found["refused"]) == [3, 4]
    assert found["alt"].startswith("1 rows: ")


def test_a_table_may_name_no_file(server: Server) -> None:
    for text in ("gpu,ms\n/etc/mine.yaml,1\n", 'lengths,ms\n"mine.csv",1\n'):
        assert "a file; the page reads none" in server.api("check", csv=text)["error"]
    told = server.api("check", csv="a,b\n1,2\n")["error"]
    assert told.startswith("table.csv: no column gpu") and "/tmp" not in told


def test_no_picture_waits_for_matplotlib() -> None:
    script = (
        "import sys; from attnsim.explore.server import answered; from attnsim.explore.pictures import PICTURES\n"
        "state = {'seq': '512', 'l2': '2x', 'exp': '2x', 'space': 'l2', 'kernels': 'flash-attn.2'}\n"
        "found = [answered('picture', {'state': state, 'name': name})[0] for name in PICTURES]\n"
        "print(*found, answered('headline', {'state': state})[0], 'matplotlib' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["200"] * (len(PICTURES) + 1) + ["False"]


def test_only_the_server_knows_starlette_and_uvicorn() -> None:
    users = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            users |= {path.name for name in names if name.split(".")[0] in ("starlette", "uvicorn")}
    assert users == {"server.py"}


def test_without_the_extra_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["explore"]) == 2
    line = "error: starlette and uvicorn are not installed; pip install 'attnsim[explore]'\n"
    assert capsys.readouterr().err == line


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from attnsim.explore.server import listen

    with listen(0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["explore", "--no-browser", "--port", str(port)]) == 2
    assert f"error: --port {port} cannot be had (" in capsys.readouterr().err


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    script += "from attnsim.cli import main; sys.exit(main())"
    asked = [sys.executable, "-c", script, "explore", "--no-browser", "--json"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        yield one
        one.kill()


def test_the_command_serves_until_interrupted(running: subprocess.Popen[str]) -> None:
    assert running.stdout is not None and running.stderr is not None
    text = "".join(iter(running.stdout.readline, "]\n"))
    (told,) = json.loads(f"{text}]")
    assert told["url"] == f"http://127.0.0.1:{told['port']}/?token={told['token']}" and len(told["token"]) >= 32
    where = f"http://127.0.0.1:{told['port']}/api/headline"
    body = json.dumps({"state": {"heads": "1", "head_dim": "64", "seq": "128"}}).encode()
    with urllib.request.urlopen(urllib.request.Request(where, body, {"X-Attnsim-Token": told["token"]})) as answer:
        assert json.load(answer)["ok"]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(where, body))
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=60) == ("", "") and running.returncode == 0


def test_nothing_is_left_of_a_server_that_is_ended(running: subprocess.Popen[str]) -> None:
    """The process of the pictures writes to the same pipe, which closes with the last of both."""
    assert running.stdout is not None
    text = "".join(iter(running.stdout.readline, "]\n"))
    (told,) = json.loads(f"{text}]")
    body = json.dumps({"name": "units"}).encode()
    where = f"http://127.0.0.1:{told['port']}/api/picture"
    with urllib.request.urlopen(urllib.request.Request(where, body, {"X-Attnsim-Token": told["token"]})) as answer:
        assert json.load(answer)["ok"]
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == -signal.SIGTERM
