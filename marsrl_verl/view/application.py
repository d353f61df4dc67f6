"""`python -m recipe.marsrl.view outputs/RUN …`: a page for the browser of this machine."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from marsrl_verl.reporting.run_folder import OutputFolderError


def main(arguments: Sequence[str]) -> int:
    """Serves the page until Ctrl-C; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m recipe.marsrl.view", description=__doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="folders of runs, e.g. outputs/demo"
    )
    parser.add_argument("--port", type=int, default=0, help="of this machine; 0: any that is free")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write one HTML file, serve nothing")
    parser.add_argument("--problems", type=int, default=40, help="of each run in the exported file")
    given = parser.parse_args(arguments)
    # Imported late: --help needs none of it.
    import uvicorn

    from marsrl_verl.view.export import export
    from marsrl_verl.view.run import ViewedRun
    from marsrl_verl.view.server import build_application

    try:
        runs = [ViewedRun(path) for path in given.runs]
    except OutputFolderError as error:
        parser.exit(2, f"{error}\n")
    if given.export is not None:
        export(runs, given.export, given.problems)
        print(f"{given.export}: {given.export.stat().st_size / 1e6:.1f} MB")
        return 0
    try:
        listening = socket.create_server(("127.0.0.1", given.port))
    except OSError as error:
        parser.exit(2, f"--port {given.port}: {error.strerror}; 0 takes a free one\n")
    token = secrets.token_urlsafe(16)
    # uvicorn raises Ctrl-C again after its shutdown.
    with listening, contextlib.suppress(KeyboardInterrupt):
        port = listening.getsockname()[1]
        print(f"http://127.0.0.1:{port}/?token={token}\n(Ctrl-C ends it)", flush=True)
        app = build_application(runs, token)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        server.run(sockets=[listening])
    return 0
