"""What a call refuses and what a command prints, held to what is true of all of them."""

from dataclasses import replace
from typing import Any

import pytest

from attnsim.api.answer import Answer, Outcome
from attnsim.api.asking import Question
from attnsim.cli import main
from attnsim.errors import InputError


def refused(call: object, *args: object) -> str:
    """The message of the `InputError`, which must be one line of bearable length."""
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call(*args)
    message = str(caught.value)
    assert "\n" not in message
    assert 10 < len(message) < 420
    return message


def varied(found: Outcome, question: dict[str, Any] | None = None, **replay: Any) -> Answer[Question]:
    """An answer with other fields of its question and of its replay; `waves` are those of its only kernel."""
    assert isinstance(found, Answer)
    run = found.run
    if "waves" in replay:
        replay["kernels"] = (replace(run.replay.main, waves=replay.pop("waves")),)
    asked, replayed = replace(run.question, **(question or {})), replace(run.replay, **replay)
    return replace(found, run=replace(run, question=asked, replay=replayed))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    """What a command prints on stdout and stderr: in a pipe no colours, and never a traceback."""
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err and "Traceback" not in captured.err
    return captured.out, captured.err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that is refused."""
    capsys.readouterr()  # what came before
    out, err = answer(capsys, *arguments, code=2)
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and "internal" not in err
    return err
