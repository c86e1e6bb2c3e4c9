"""What a call refuses and what a command prints, held to what is true of all of them."""

import pytest

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
