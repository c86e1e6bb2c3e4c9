"""Every reader of files against damaged ones: `python benchmarks/fuzz.py [--inputs 20000] [--seed 0]`.

Real files are mutated and read. One in three is damaged: bytes, lines and values changed, cut, doubled, nested,
replaced by what somebody may write by mistake or on purpose. The others are altered as by a person who means something
else: a number is another one, lines end otherwise. Most of those are answered, and a GPU that was read is asked a
question, so that what is behind the readers is reached too. A reader may answer or refuse with an `InputError` of one
line; anything else is a fault, printed with its seed, and the command ends with 1. Extreme but legal shapes and GPUs
are asked beside them: answers are finite and ordered.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import attnsim
from attnsim.errors import InputError
from attnsim.simulator.replay import Mode

REPOSITORY = Path(__file__).resolve().parents[1]
VALUES = (
    b"", b"-1", b"0", b"1e999", b"nan", b"-inf", b"1e-320", b"99999999999999999999999", b"0x10", b"true", b"null", b"~",
    b"[]", b"{}", b"[[[[[[[[]]]]]]]]", b"'", b'"', b"&a [*a]", b"!!python/object/apply:os.system ['touch hacked']",
    b"=1+1", b"../../etc/passwd", b"\x00", b"\xff\xfe", "\N{SNOWMAN}".encode(), "\u202e1".encode(), b"1" * 400,
    b"- - - -",
    b"1 TB/s", b"1 parsec", b"3,5", b"1_000", b"1:30",
    b"<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>&b;",
    b"%s%n", b"${HOME}", b"\r\n", b"\t", b"# ", b"0" * 30 + b"1",
)  # fmt: skip
"""What takes the place of a value."""
DAMAGED = 1 / 3
"""Inputs that are damaged; others are altered."""
SMALL = attnsim.Workload(heads=8, seq=1024, head_dim=64, dtype="fp16", causal=True)
"""What a GPU of a file is asked."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that reads a file: its name, the ending of its files, real examples, and how it reads a path."""

    name: str
    suffix: str
    examples: tuple[Path, ...]
    read: Callable[[Path], object]


def readers() -> tuple[Reader, ...]:
    """Every reader of the package."""
    from attnsim.api.tables import predict_table
    from attnsim.kernels.gpu.records import Records
    from attnsim.models.hardware.files import load_gpu
    from attnsim.models.hardware.importing import import_hardware
    from attnsim.models.llm.files import load_model
    from attnsim.models.llm.huggingface import import_config
    from attnsim.models.mask.mask import Mask
    from attnsim.models.question.case_file import read_cases, read_table
    from attnsim.studies.study_file import read_study
    from attnsim.validation.measuring.counters import read_counters

    def predicted(path: Path) -> object:
        frame = read_table(path).head(2)
        return predict_table(frame, processes=1, progress=False)

    def asked(path: Path) -> object:
        return attnsim.predict(SMALL, load_gpu(str(path)), baseline=False)

    def masks(path: Path) -> object:
        return [Mask.parse(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[:3]]

    def some(folder: Path, names: str, step: int = 1) -> tuple[Path, ...]:
        return tuple(sorted(folder.glob(names))[::step])

    package, data = REPOSITORY / "attnsim", REPOSITORY / "tests" / "data"
    models, published = package / "models", package / "validation" / "measurements" / "published"
    return (
        Reader("GPU file", ".yaml", some(models / "hardware" / "gpus", "*.yaml", 4), asked),
        Reader("model file", ".yaml", some(models / "llm" / "presets", "*.yaml", 5), lambda p: load_model(str(p))),
        Reader("study", ".yaml", some(REPOSITORY / "examples", "study*.yaml"), read_study),
        Reader("case table", ".csv", (published / "flash_attention_1.csv",), read_cases),
        Reader("case table, predicted", ".csv", (published / "flash_attention_1.csv",), predicted),
        Reader("Hugging Face config", ".json", (_written("config.json", CONFIG),), import_config),
        Reader("hardware, LLMCompass", ".json", some(data, "*.json"), import_hardware),
        Reader("hardware, AIConfigurator", ".yaml", some(data, "*.yaml"), import_hardware),
        Reader("hardware, nvidia-smi", ".xml", some(data, "*.xml"), import_hardware),
        Reader("records of a run", ".jsonl", (_written("records.jsonl", RECORD),), Records),
        Reader("counters", ".csv", (_written("counters.csv", COUNTERS),), read_counters),
        Reader("mask", ".txt", (_written("masks.txt", MASKS),), masks),
    )  # fmt: skip


CONFIG = json.dumps(
    {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 32, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    },
    indent=1,
)  # fmt: skip
RECORD = '{"key": "machine a", "kind": "machine", "gpu": "x"}\n{"key": "null cold", "kind": "null", "median_s": 1e-6}\n'
COUNTERS = (
    '"ID","Kernel Name","Grid Size","dram__bytes_read.sum","dram__bytes_write.sum","lts__t_bytes.sum",'
    '"gpu__time_duration.sum"\n"","","","byte","byte","byte","ns"\n'
    '"0","flash_forward","(264, 2, 1)","50,331,648","16,777,216","2,147,483,648","223,104"\n'
)
MASKS = (
    "causal, window 512, global 16\nrandom 3x64 seed 1, block window 1x64\ndilated 48 step 3, global at 0 5 100-103\n"
)


def _written(name: str, text: str) -> Path:
    folder = Path(tempfile.gettempdir()) / "attnsim-fuzz-examples"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A damaged copy: one to four changes."""
    for _ in range(chance.randint(1, 4)):
        data = chance.choice((_value, _value, _value, _line, _bytes, _cut, _twice, _word))(data, chance)
    return data


def altered(data: bytes, chance: random.Random) -> bytes:
    """A copy that says something else, or the same in another way: one to three changes."""
    for _ in range(chance.randint(1, 3)):
        data = chance.choice((_number, _number, _ends))(data, chance)
    return data


def _number(data: bytes, chance: random.Random) -> bytes:
    """A number halved, doubled or a little off."""
    found = list(re.finditer(rb"(?<![\w.+-])\d+(\.\d+)?(?![\w.])", data))
    if not found:
        return data
    here = chance.choice(found)
    if b"." in here[0]:
        other = f"{float(here[0]) * chance.uniform(0.8, 1.25):.4g}"
    else:
        number = int(here[0])
        other = str(chance.choice((2 * number, number // 2 if number > 1 else number, number)))
    return data[: here.start()] + other.encode() + data[here.end() :]


def _ends(data: bytes, chance: random.Random) -> bytes:
    """Other ends of lines, and more or none at the end."""
    return b"\n".join(data.splitlines()).replace(b"\n", chance.choice((b"\n", b"\r\n"))) + b"\n" * chance.randint(0, 3)


def _value(data: bytes, chance: random.Random) -> bytes:
    """A number or word replaced by something else."""
    found = list(re.finditer(rb"[\w.+-]+", data))
    if not found:
        return data
    here = chance.choice(found)
    return data[: here.start()] + chance.choice(VALUES) + data[here.end() :]


def _word(data: bytes, chance: random.Random) -> bytes:
    found = list(re.finditer(rb"[\w.+-]+", data))
    if not found:
        return data
    here, other = chance.choice(found), chance.choice(found)
    return data[: here.start()] + other[0] + data[here.end() :]


def _line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    place = chance.randrange(len(lines))
    how = chance.randrange(4)
    if how == 0:
        del lines[place]
    elif how == 1:
        lines.insert(place, lines[chance.randrange(len(lines))])
    elif how == 2:
        lines[place] = b" " * chance.randint(1, 8) + lines[place]
    else:
        lines[place] = lines[place].lstrip()
    return b"\n".join(lines)


def _bytes(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + bytes(chance.randrange(256) for _ in range(chance.randint(1, 4))) + data[place + 1 :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _twice(data: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(data) + 1)
    return data + data[begin : begin + chance.randint(1, 2000)]


def attempt(reader: Reader, data: bytes, folder: Path) -> str:
    """Read damaged data: "answered", "refused", or what went wrong."""
    path = folder / f"fuzz{reader.suffix}"
    path.write_bytes(data)
    try:
        reader.read(path)
    except InputError as error:
        message = str(error)
        found = "refused" if message and "\n" not in message else f"a message of several lines: {message!r}"
    except Exception:
        found = traceback.format_exc()
    else:
        found = "answered"
    left = sorted(item.name for item in folder.iterdir() if item != path)
    return found if not left else f"files were left: {left}"


def run(inputs: int, seed: int) -> Iterator[tuple[str, int, str]]:
    """Reader, seed of the input and outcome, for so many inputs over all readers."""
    everything = readers()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(inputs):
            reader = everything[number % len(everything)]
            chance = random.Random(f"{seed} {number}")
            change = mutated if chance.random() < DAMAGED else altered
            data = change(chance.choice(reader.examples).read_bytes(), chance)
            outcome = attempt(reader, data, folder)
            yield reader.name, number, outcome
            for item in folder.iterdir():
                item.unlink()


def extremes() -> Iterator[tuple[str, str]]:
    """Legal but extreme questions: finite times, in the order that physics demands; what is wrong, in words, or ""."""
    base = attnsim.load_gpu("h100-sxm5-80gb")
    causal = attnsim.Mask.causal()

    def time_s(gpu: attnsim.Gpu, mode: Mode = "fast", **shape: object) -> float:
        usual = {"batch": 1, "heads_q": 1, "seq_q": 1024, "head_dim": 64, "mask": causal}
        w = attnsim.Workload(**{**usual, **shape})  # type: ignore[arg-type]
        found = attnsim.predict(w, gpu, baseline=False, mode=mode).time_s
        return math.nan if found is None else found

    lengths = [time_s(base, seq_q=1 << n) for n in range(0, 23, 4)] + [time_s(base, seq_q=10_000_000)]
    yield "1 to 10 M tokens", _ordered(lengths, rising=True)
    counts = [base.replace("sm.count", n) for n in (1, 10, 100, 1_000, 10_000)]
    fast, exact = ([time_s(gpu, mode, heads_q=64, seq_q=8192) for gpu in counts] for mode in ("fast", "exact"))
    yield "1 to 10,000 SMs, every block played", _ordered(exact, rising=False)
    # Between the last two its error is larger than what they differ by: on 10,000 SMs each block has a place.
    yield "1 to 1,000 SMs, default mode", _ordered(fast[:-1], rising=False)
    yield "100 and 10,000 SMs, default mode", _ordered(fast[2::2], rising=False)
    off = [default / true - 1 for default, true in zip(fast, exact, strict=True)]
    yield (
        "1 to 10,000 SMs, default mode beside every block played",
        "" if max(map(abs, off)) < 0.02 else f"off exact mode: {off}",
    )
    for figure in ("hbm.bandwidth", "l2.bandwidth", "tensor.bf16", "sm.exp_rate"):
        times = [time_s(base.replace(figure, f"{factor}x"), heads_q=64, seq_q=8192) for factor in (0.01, 1, 1_000)]
        yield f"{figure} times 0.01 to 1,000", _ordered(times, rising=False)


def _ordered(times: list[float], *, rising: bool) -> str:
    if not all(math.isfinite(time) and time > 0 for time in times):
        return f"not finite: {times}"
    pairs = itertools.pairwise(times)
    slack = 1.02  # anomalies of first-come-first-served units, see docs/design/what-if.md
    wrong = [(a, b) for a, b in pairs if (b * slack < a if rising else a * slack < b)]
    return f"out of order: {wrong}" if wrong else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    faults = 0
    for name, number, outcome in run(given.inputs, given.seed):
        kind = outcome if outcome in ("answered", "refused") else "FAULT"
        counts[name, kind] += 1
        if kind == "FAULT":
            faults += 1
            print(f"{name}, seed {given.seed}, input {number}:\n{outcome}", file=sys.stderr)
    for name in dict.fromkeys(reader for reader, _ in counts):
        print(f"{name:26} {counts[name, 'answered']:>7,} answered {counts[name, 'refused']:>7,} refused "
              f"{counts[name, 'FAULT']:>5} faults")  # fmt: skip
    answered = sum(number for (_, kind), number in counts.items() if kind == "answered")
    print(f"{answered:,} of {given.inputs:,} answered ({answered / given.inputs:.0%})")
    for what, wrong in extremes():
        faults += bool(wrong)
        print(f"{what}: {wrong or 'finite and in order'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
