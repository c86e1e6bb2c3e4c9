"""`attnsim explore`: the page of this machine, or the same page as files."""

from __future__ import annotations

import importlib.util
import secrets
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import options, progress, show
from attnsim.cli.options import flag
from attnsim.errors import InputError


def explore(
    *,
    port: Annotated[
        int,
        options.count("Port on 127.0.0.1; default: any free one.", None, low=0, high=65535, show_default=False),
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    build: Annotated[Path | None, flag("DIR", "Write the page with computed answers, for a web server.")] = None,
    json: options.Json = False,
) -> None:
    """Change a GPU and a question on a page of this machine, and see the answer move; Ctrl-C ends it.

    Only whoever has the printed address is answered, and only on this machine.
    """
    _check_extra()
    if build is not None:
        if port:
            raise InputError(f"--port {port} is of a server, and --build writes files; leave one out")

        from attnsim.explore import build as pages

        pages.check_folder(build)
        with progress.steps("answering states", pages.count()) as done:
            written = pages.build(build, done)
        if json:
            show.print_json([{"folder": str(build), "files": written}])
            return
        print(f"written: {build}, {written} files; python -m http.server --directory {build}")
        return

    from attnsim.explore import server

    listening, token = server.listen(port), secrets.token_urlsafe(24)
    number = listening.getsockname()[1]
    url = f"http://127.0.0.1:{number}/?token={token}"
    if json:
        show.print_json([{"url": url, "port": number, "token": token}])
    else:
        print(f"{url}\nOnly this machine is answered; Ctrl-C ends it.")

    sys.stdout.flush()
    if browser:
        webbrowser.open(url)
    server.serve(listening, token)


def _check_extra() -> None:
    """Refuse where the extra is not installed."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} are not installed; pip install 'attnsim[explore]'")
