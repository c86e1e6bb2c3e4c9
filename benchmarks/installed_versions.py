"""What people run first, on whatever is installed: `make test-lowest` has the lowest versions of pyproject.toml here.

Run `python benchmarks/installed_versions.py`. Each command's example (the demo among them) is run, the page of `attnsim
explore` is asked for its sentence, and a hundred recorded questions are answered as recorded. Nothing but attnsim with
its extra `explore` and pyarrow is needed; what failed is printed, and the command then ends with 1.
"""

from __future__ import annotations

import json
import math
import platform
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RECORDED = runpy.run_path(str(REPOSITORY / "benchmarks" / "recorded_questions.py"))
"""By its path: some releases of pyarrow install benchmarks of their own."""

NOT_RUN = {
    "explore": "serves until interrupted, and is asked for its sentence",
    "fit": "takes hours",
    "kernels check": "needs NVRTC, one release of which pyproject.toml allows",
    "kernels run": "the same",
    "kernels trace": "the same",
    "measure": "needs a GPU",
    "probe": "needs a GPU",
    "validate": "needs what measure wrote",
}
ANSWERS = 100
CLOSE = 1e-9
"""Other versions of NumPy round the last bits of a logarithm otherwise."""


def examples() -> Iterator[tuple[str, list[str]]]:
    """Commands and the words of their examples."""
    from typer.main import get_command

    from attnsim.cli.app import app
    from attnsim.cli.help import commands

    for name, command in commands(get_command(app)):
        if name not in NOT_RUN:
            yield name, shlex.split(command.epilog)[1:]


def files(folder: Path) -> None:
    """The files that examples name."""
    shutil.copy(REPOSITORY / "examples" / "mine.csv", folder)
    shutil.copy(REPOSITORY / "examples" / "report.yaml", folder / "study.yaml")  # the smaller study
    shutil.copy(REPOSITORY / "tests" / "data" / "llmcompass_a100.json", folder / "A100.json")
    (folder / "requests.csv").write_text("arrival,prompt,output\n0,512,8\n0.1,1024,8\n")
    model = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
    (folder / "config.json").write_text(json.dumps(model))


def ran(words: list[str]) -> str:
    """What went wrong with a command, or ""."""
    command = [sys.executable, "-m", "attnsim", *words]
    with tempfile.TemporaryDirectory() as name:
        files(Path(name))
        found = subprocess.run(command, cwd=name, capture_output=True, text=True, check=False)
    rough = "Traceback" in found.stderr or "Warning" in found.stderr
    return found.stderr.strip() or f"ended with {found.returncode}" if found.returncode or rough else ""


def explored() -> str:
    """What went wrong with the page, or ""."""
    command = [sys.executable, "-m", "attnsim", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        where, _, token = server.stdout.readline().strip().partition("?token=")
        try:
            asked = urllib.request.Request(f"{where}api/headline", b"{}", {"X-Attnsim-Token": token})
            with urllib.request.urlopen(asked) as told:
                sentence = json.load(told)["sentence"]
        except (OSError, ValueError) as error:
            sentence = str(error)
        finally:
            server.send_signal(signal.SIGINT)
        wrong = server.communicate(timeout=60)[1]
    return wrong or ("" if "takes" in sentence and server.returncode == 0 else sentence)


def close(one: Any, other: Any) -> bool:
    """Whether two recorded values are equal but for the last bits."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(close, one, other))
    return bool(one == other)


def moved() -> Iterator[str]:
    """Recorded questions that are answered otherwise."""
    for row in RECORDED["read"]()[:ANSWERS]:
        found = RECORDED["answer"](row["question"])
        if not (row["answer"].keys() == found.keys() and all(close(row["answer"][key], found[key]) for key in found)):
            yield json.dumps(row["question"])


def main() -> int:
    asked = dict(examples())
    results = {command: ran(words) for command, words in asked.items()} | {"explore": explored()}
    faults = [f"{command}: {wrong}" for command, wrong in results.items() if wrong]
    faults += [f"answered otherwise: {question}" for question in moved()]
    for fault in faults:
        print(fault, file=sys.stderr)
    what = f"{len(asked)} examples, the page and {ANSWERS} answers"
    print(f"Python {platform.python_version()}: {what}, {len(faults)} wrong")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
