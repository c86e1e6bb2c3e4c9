"""Bad input through the real command line: one clear line on stderr, code 2, nothing half-written."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.answering import refusal

Q = "predict --gpu h100-sxm5-80gb --heads 8 --seq 1024 --head-dim 64"

# A command line, and what the message must name.
FLAGS = [
    (
        "explain bigbird --gpu a100-sxm4-80gb --heads 16 --seq 4096 --head-dim 64 --window 512",
        "--window 512 is for sliding-window, sparse and window-gather, not for",
    ),
    (
        "trace --gpu l4 --heads 16 --seq 4096 --head-dim 64 --window 512 --algorithm longformer --out x.json.gz",
        "--window 512 is for sliding-window, sparse and window-gather, not for",
    ),
    ("predct", "predict"),
    ("predict", "--gpu"),
    ("predict --gpu", "--gpu"),
    ("predict --gpu l4", "--heads"),
    ("predict --gpu l4 --heads 8", "--seq"),
    ("predict --gpu l4 --heads 8 --seq 512", "--head-dim"),
    (f"{Q} --sequence 5", "--sequence"),
    (f"{Q} --gpuu l4", "--gpuu"),
    (f"{Q} surplus", "attnsim predict takes flags only, not 'surplus'; attnsim predict --help lists its flags"),
    (f"{Q} flash", "not 'flash'; write --algorithm flash"),
    ("predict a100 --seq 512", "not 'a100'; write --gpu a100"),
    ("sensitivity naive,flash --gpu l4", "not 'naive,flash'; write --algorithm naive,flash"),
    ("explain flash l4", "attnsim explain takes no more words than ALGORITHM, not 'l4'; write --gpu l4"),
    ("explain --algorithm flash --gpu l4", "no --algorithm; give the value by itself: attnsim explain ALGORITHM"),
    ("gpus show --gpu l4", "no --gpu; give the value by itself: attnsim gpus show ID"),
    (f"{Q} --gpu ,", "','"),
    (f"{Q} --batch 2 --batch 4", "--batch is given twice; keep one"),
    ("check one.csv --out a.csv --out b.csv", "--out is given twice; keep one (it takes one FILE: "),
    (f"{Q} --algorithm flash --algorithm naive", "--algorithm is given twice"),
    (f"{Q} --causal --causal", "--causal is given twice"),
    (f"{Q.replace('predict', 'sensitivity')} --seed 5", "--seed is about the indices of --sobol"),
    (f"{Q} --algorithm ''", "--algorithm is empty; give it a value, or leave it out"),
    (f"{Q} --budget 10.5", "'10.5' given; allowed: whole numbers"),
    ("predict --gpu h100-sxm4-80gb --heads 8 --seq 1024 --head-dim 64", "h100-sxm5-80gb"),
    ("predict --gpu gone.yaml --heads 8 --seq 1024 --head-dim 64", "gone.yaml"),
    (f"{Q} --algorithm flsh", "flsh"),
    (f"{Q} --algorithm naive,,flash", "naive,,flash"),
    (f"{Q} --algorithm sliding-window", "--window"),
    (f"{Q} --algorithm split-kv", "1024"),
    (f"{Q} --algorithm flash-3 --gpu a100-sxm4-80gb", "flash-3"),
    (f"{Q} --implementation flashinfr", "flashinfer"),
    (f"{Q} --implementation nvidia.cudnn-frontend", "sm_89"),
    (f"{Q} --implementation flash-attn.2 --algorithm naive", "flash-attn.2"),
    (f"{Q} --implementation flash-attn.1 --window 64 --algorithm sliding-window", "flash-attn.1"),
    (f"{Q} --tiles best", "best"),
    (f"{Q} --tile 128", "'128'"),
    (f"{Q} --tile 128x64x2", "128x64x2"),
    (f"{Q} --tile 128x63", "128x63"),
    (f"{Q} --tile 80x64", "80x64"),
    (f"{Q} --tile 128x512", "128 x 512"),
    (f"{Q} --tile 128x64 --tiles retuned", "128x64"),
    (f"{Q} --algorithm strided --pass fwd+bwd --tiles retuned", "shipped tiles for both passes"),
    (f"{Q} --tile 128x64 --algorithm naive", "128x64"),
    (f"{Q} --mode slow", "slow"),
    (f"{Q} --budget 999", "999"),
    (f"{Q} --budget 20000 --mode exact", "20000"),
    (f"{Q} --budget 999 --layer --model llama-3-8b", "999"),
    (f"{Q} --set sm.count=2x --set l2.bandwidth=2x --split --json --baseline flash", "--baseline is about the table"),
    ("roofline --gpu l4 --measured mine.csv --causal", "--causal is given with --measured"),
    ("check mine.csv --style dark", "--style is about the picture of --plot"),
    ("breakeven --gpu l4 --width column", "--width is about the picture of --plot"),
    (f"search hardware{Q.removeprefix('predict')} --vary sm.count=1:9 --style dark", "--style is about the picture"),
    ("explain flash --gpu l4 --budget 999", "999"),
    ("trace flash --gpu l4 --heads 8 --seq 1024 --head-dim 64 --budget 20000", "--budget"),
    (f"{Q} --cache hot", "hot"),
    (f"{Q} --launch rocket", "rocket"),
    (f"{Q} --out answers.csv", "answers.csv"),
    ("gpus shw", "show"),
    ("plot waves --gpu l4 --heads 8 --head-dim 64 --seq 8k", "write --seq 256:8192:256, not 8k"),
    ("kernels trace flash --out flash.json", "flash.json: end the name with .yaml"),
    ("gpus show l5", "l5"),
    ("gpus --json show l4", "--json"),
    ("fit nothing", "nothing"),
    ("roofline", "--gpu"),
    ("roofline --gpu l4 --out picture.gif", "picture.gif"),
    ("roofline --gpu l4 --out nowhere/picture.png", "nowhere"),
]
NUMBERS = [
    ("sweep study.yaml --out results --jobs 0", "--jobs: '0' given; allowed: whole numbers from 1, such as"),
    ("search tile --gpu l4 --heads 8 --seq 1k --head-dim 64 --top 0", "--top: '0' given; allowed: whole numbers from"),
    ("search hardware --gpu l4 --points 1.5", "--points: '1.5' given"),
    ("search hardware --gpu l4 --seed -1", "--seed: '-1' given; allowed: whole numbers from 0, such as"),
    ("explore --port 99999", "--port: '99999' given; allowed: whole numbers from 0 to 65535"),
    ("sensitivity --gpu l4 --step abc", "--step: 'abc' given; allowed: numbers from 0"),
    ("sensitivity --gpu l4 --sobol many", "--sobol: 'many' given"),
    ("sensitivity --gpu l4 --sobol 64 --spread inf", "--spread: 'inf' given"),
    ("plot tornado --gpu l4 --step -1", "--step: '-1' given"),
    ("serving trace.csv --gpu l4 --tokens lots", "--tokens: 'lots' given"),
    ("serving trace.csv --gpu l4 --rest -1", "--rest: '-1' given; allowed: numbers from 0"),
    ("measure --out results --minutes nan", "--minutes: 'nan' given; allowed: numbers from 0"),
    ("validate --minutes soon", "--minutes: 'soon' given"),
    ("kernels run flash --cpu --tolerance tight", "--tolerance: 'tight' given"),
    ("kernels run --ptx mine.ptx --shared -1", "--shared: '-1' given; allowed: whole numbers from 0"),
    ("kernels trace flash --registers 0", "--registers: '0' given"),
]
SHAPES = [
    (f"{Q} --batch 0", "'0'"),
    ("predict --gpu l4 --heads eight --seq 1024 --head-dim 64", "'eight'"),
    ("predict --gpu l4 --heads 8 --seq 1e9 --head-dim 64", "'1e9'"),
    (
        "predict --gpu l4 --heads 8 --seq 99999999999 --head-dim 64",
        "seq_q is 99999999999; allowed: a whole number from 1 to 134217728",
    ),
    ("breakeven --gpu l4 --heads 8 --head-dim 64 --seq 1k --block 8589934592", "allowed: 1 to 134217728 tokens"),
    (f"{Q} --kv-heads 3", "3"),
    ("predict --gpu l4 --heads 8 --seq 1024 --head-dim 0", "'0'"),
    ("predict --gpu l4 --heads 8 --seq 1024 --head-dim 700 --algorithm flash", "700"),
    (f"{Q} --head-dim-v 513 --algorithm flash", "513"),
    (f"{Q} --window 0", "'0'"),
    (f"{Q} --window 64 --algorithm naive,flash", "64"),
    (f"{Q} --pass sideways", "sideways"),
    (f"{Q} --pass bwd --algorithm split-kv", "bwd"),
    (f"{Q} --dtype int8", "int8"),
    (f"{Q} --dtype fp8 --pass bwd", "fp8"),
    ("predict --gpu v100-sxm2-32gb --heads 8 --seq 1024 --head-dim 64", "bf16"),
    ("predict --gpu a100-sxm4-80gb --heads 8 --seq 1024 --head-dim 64 --dtype fp8", "fp8"),
]
CHANGES = [
    (f"{Q} --set hbm.bandwith=6TB/s", "hbm.bandwidth"),
    (f"{Q} --set hbm.bandwidth", "hbm.bandwidth"),
    (f"{Q} --set =5", "'=5'"),
    (f"{Q} --set sm.shared_memory=64KiB --tiles shipped", "63 KiB"),
    (f"{Q} --set sm.count=2x --set sm.count=3x", "sm.count"),
    (f"{Q} --set sm.count=+20%", "sm.count is '+20%'; write 1.2x"),
    (f"{Q} --set hbm.bandwidth=-7.5%", "write 0.925x"),
    (f"{Q} --set features.wgmma=false --implementation flash-attn.3", "wgmma"),
]
FILES = [
    ("gpus new", "FILE"),
    ("gpus new x.yaml", "--from"),
    ("gpus new x.txt --from l4", "x.txt"),
    ("gpus new l4.yaml --from l4", "l4"),
    ("gpus new 'a b.yaml' --from l4", "a b.yaml"),
    ("gpus new nowhere/x.yaml --from l4", "nowhere"),
    ("gpus new x.yaml --from l5", "l5"),
    ("gpus new x.yaml --from l4 --set sm.count=many", "many"),
    ("gpus new /proc/x.yaml --from l4", "/proc/x.yaml"),
    ("demo --out /dev/null/demo", "/dev/null/demo"),
    ("predict --cases gone.csv", "gone.csv"),
    ("predict --cases .", "folder"),
    ("predict --cases gone.csv --seq 5", "--seq"),
    ("predict --cases gone.csv --gpu l4", "--gpu"),
    ("predict --cases gone.csv --out x.txt", "x.txt"),
    ("predict --cases gone.csv --out nowhere/x.csv", "nowhere"),
]
# A file's content, the command that reads it as FILE, and what the message must name.
CONTENTS = [
    ("", "predict --cases FILE --out out.csv", "empty"),
    ("gpu,batch\nl4,1\n", "predict --cases FILE --out out.csv", "heads_q"),
    (
        "gpu,batch,heads_q,seq_q,head_dim\nl4,1,8,512,64\n",
        "predict --cases FILE --out /proc/out.csv",
        "/proc/out.csv",
    ),
    ("gpu,batch,heads_q,seq_q,head_dim\nl4,1,8,512,64\n", "predict --cases FILE --mode slow", "slow"),
    ("gpu,batch,heads_q,seq_q,head_dim\nl4,1,8,512,64\n", "predict --cases FILE --budget 999", "999"),
    ("gpu: l4\nset: {sm.count: 2x}\n", "sweep FILE.yaml --out results", "; all: title, gpu, change, "),
    ("", "serving FILE --gpu l4 --model llama-3-8b", "FILE is empty; write columns prompt and output"),
    (
        "extends: l4\nid: mine\nhbm:\n  bandwidth: {value: 5, kind: assumed, source: me}\n",
        "predict --gpu FILE.yaml --heads 8 --seq 512 --head-dim 64",
        "hbm.bandwidth",
    ),
]


@pytest.fixture(autouse=True)
def nothing_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "named"), [*FLAGS, *NUMBERS, *SHAPES, *CHANGES, *FILES], ids=lambda text: str(text)[-40:]
)
def test_one_clear_line(command: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in refusal(capsys, *shlex.split(command))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("content", "command", "named"), CONTENTS, ids=lambda text: str(text)[-40:])
def test_a_bad_file_is_named(
    content: str, command: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "FILE.yaml" if "FILE.yaml" in command else "FILE"
    (tmp_path / name).write_text(content)
    assert named in refusal(capsys, *shlex.split(command))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_existing_answer_survives_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.csv").write_text("precious")
    (tmp_path / "in.csv").write_text("gpu,batch\nl4,1\n")
    refusal(capsys, "predict", "--cases", "in.csv", "--out", "out.csv")
    assert (tmp_path / "out.csv").read_text() == "precious"


@pytest.mark.parametrize("command", [f"{Q} --batch 0", "predct", f"{Q} --set hbm.bandwith=6TB/s"])
def test_the_process_itself_says_one_line(command: str) -> None:
    script = "import sys; from attnsim.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, *shlex.split(command)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "other"),
    [
        ("check mine.csv --out mine.csv", "TABLE"),
        ("check mine.csv --plot mine.png", "TABLE"),
        ("check mine.csv --plot new.png --out new.csv", "--out"),
        ("roofline --gpu l4 --measured mine.csv --out mine.png", "--measured"),
        ("predict --cases mine.csv --out ./mine.csv", "--cases"),
        ("serving mine.csv --gpu l4 --model llama-3-8b --plot mine.svg", "TRACE"),
        ("serving mine.csv --gpu l4 --model llama-3-8b --out mine.csv", "TRACE"),
        ("trace --gpu l4 --heads 8 --head-dim 64 --lengths mine.csv --picture mine.png", "--lengths"),
        ("plot units --gpu l4 --heads 8 --head-dim 64 --lengths mine.csv --out mine.pdf", "--lengths"),
        (
            "search hardware --gpu l4 --heads 8 --head-dim 64 --lengths mine.csv --vary sm.count=58:60 --out mine.csv",
            "--lengths",
        ),
        ("plot units --gpu mine.csv,l4 --heads 8 --head-dim 64 --seq 512 --out mine.png", "--gpu"),
        (
            "plot units --gpu l4 --heads 8 --head-dim 64 --lengths mine.txt --caption file --out mine.png",
            "--lengths",
        ),
    ],
)
def test_a_file_is_never_written_over_one_that_is_read(
    command: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    read = [tmp_path / "mine.csv", tmp_path / "mine.txt"]
    for one in read:
        one.write_text("kept")
    told = refusal(capsys, *shlex.split(command))
    assert f"would be written over that of {other}; give another name" in told
    assert sorted(tmp_path.iterdir()) == read and {one.read_text() for one in read} == {"kept"}
