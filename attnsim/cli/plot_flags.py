"""The flags that the pictures of `attnsim plot` share, gathered into one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any

from attnsim.api import compare
from attnsim.api.answer import Outcome
from attnsim.cli import options, progress, question_flags, show
from attnsim.cli.look import Look
from attnsim.cli.options import flag
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.mechanisms import comparable_unfused
from attnsim.models.question.words import listed, whole
from attnsim.models.question.workload import Workload
from attnsim.plots.sheet import Picture
from attnsim.tables import written

MOST = 512
"""Points of a range."""

Lengths = Annotated[
    str | None, flag("N", "Lengths: 4096; 512,1024; 512:131072, each twice the last; 256:8192:256 in steps.")
]
Tiles = Annotated[str, flag(None, "shipped or retuned; with --set retuned for the unchanged GPU too.")]
Batches = Annotated[str, flag("N", "Sequences; several as for --seq.")]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The flags that a picture of answers has: whose, on which GPUs, the conditions, and where it goes."""

    gpu: options.ManyGpus
    algorithm: options.DrawnNames = ""
    implementation: options.ImplementationNames = ""
    flags: question_flags.QuestionFlags
    changes: options.Changes = field(default_factory=list)
    tiles: Tiles = "shipped"
    how: question_flags.LaunchFlags
    out: options.Pictures
    look: Look
    json: options.Json = False

    def __post_init__(self) -> None:
        """Refuse, before anything is computed, what could not be drawn or written."""
        self.look.check(*self.out)

    @property
    def implementations(self) -> list[str]:
        """Implementations, where any is named."""
        return options.some_words(self.implementation, "--implementation")

    def machines(self) -> list[Gpu]:
        """Each GPU as it is, and beside it changed by ``--set``."""
        return question_flags.beside_unchanged(self.gpu, self.changes)

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions that the flags set, by the names of the API's parameters."""
        return {**self.how.with_l2(self.flags.l2), "tiles": self.tiles}

    def answers(self, questions: Sequence[Workload]) -> list[tuple[Gpu, Outcome]]:
        """Every algorithm on every GPU for each question."""
        machines, found = self.machines(), []
        with progress.steps("predicting", len(questions) * len(machines)) as done:
            for question in questions:
                for machine in machines:
                    answers = compare(
                        question,
                        machine,
                        drawn(self.algorithm, question),
                        implementation=self.implementations,
                        **self.conditions,
                    )
                    found += [(machine, one) for one in answers]
                    done()
        return found


@dataclass(frozen=True, kw_only=True)
class Asked(Drawn):
    """The flags of a picture over lengths and batches."""

    batch: Batches = "1"
    seq: Lengths = None

    @property
    def names(self) -> list[str]:
        """Algorithms."""
        return drawn(self.algorithm, self.questions()[0])

    def questions(self) -> list[Workload]:
        """A workload for each batch and length."""
        if self.seq is None and self.flags.lengths is not None:
            return [self.flags.workload(batch=batch) for batch in numbers_of(self.batch, "--batch")]
        assert self.seq is not None
        return [
            self.flags.workload(batch=batch, seq=seq)
            for batch in numbers_of(self.batch, "--batch")
            for seq in numbers_of(self.seq, "--seq")
        ]

    def question(self) -> Workload:
        """The one workload.

        Raises
        ------
        InputError
            When several are asked for.
        """
        found = self.questions()
        if len(found) > 1:
            raise InputError(
                f"--seq {self.seq} and --batch {self.batch} are {len(found)} questions; this picture has one"
            )
        return found[0]

    def predictions(self) -> list[Outcome]:
        """Every algorithm on every GPU for every question."""
        return [one for _, one in self.answers(self.questions())]

    def finish(self, picture: Picture) -> None:
        """Write the picture and its table, and say so."""
        files = self.look.write(picture, *self.out)
        about = filter(None, (f"{self.flags.title}{picture.title}", picture.subtitle, picture.caption))
        show.give(self.json, picture.rows, chain(["\n\n".join(about) + "\n"], written(files)))


def numbers_of(text: str, flag: str) -> list[int]:
    """Whole numbers: ``64k``, ``512,1024``, ``512:131072`` (each twice the last) or ``256:8192:256`` (in steps)."""
    found: list[int] = []
    for word in listed(text, flag):
        parts = [whole(part) for part in word.split(":")]
        numbers = [number for number in parts if number is not None]
        if len(parts) > 3 or len(numbers) < len(parts):
            raise InputError(f"{flag}: {word!r} given; allowed: N, FIRST:LAST (doubling), FIRST:LAST:STEP")
        first, last, step = numbers[0], numbers[:2][-1], (numbers[2] if len(numbers) == 3 else 0)
        if not 1 <= first <= last or (len(numbers) == 3 and step < 1):
            raise InputError(f"{flag}: {word} is empty; allowed: 1 <= FIRST <= LAST, STEP from 1")
        while first <= last and len(found) <= MOST:
            found.append(first)
            first = first + step if step else 2 * first
    if len(found) > MOST:
        raise InputError(f"{flag}: {text} has more than {MOST} numbers; take a longer step")
    return list(dict.fromkeys(found))


def drawn(names: str, question: Workload) -> list[str]:
    """The algorithms of a picture: those named, or the fused one beside the unfused one where that can be asked."""
    return options.words([names], "--algorithm") if names else [*comparable_unfused(question), "flash"]
