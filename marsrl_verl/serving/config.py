"""`marsrl.serve`: the settings of the server."""

from __future__ import annotations

from marsrl_verl.settings.declaration import Switched, limits


class ServeConfig(Switched):
    """The server of a reasoning system; `python -m recipe.marsrl.serve` switches it on."""

    enabled: bool = False
    """Serve in place of training; the command sets it."""
    host: str = "127.0.0.1"
    """Address to listen on. Any address other than localhost requires a key."""
    port: int = limits(8000, ge=1, le=65_535, why="it is a TCP port")
    """The port."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key which clients have to send; null: none is
    required."""
    api_key_file: str | None = None
    """File that holds the key, in place of `api_key_env`."""
    max_running: int = limits(64, ge=1, why="one is answered")
    """Most runs of the system at a time. A run prompts one role after the other."""
    max_waiting: int = limits(256, ge=0, why="0 lets nobody wait")
    """Most requests that wait for a run; further ones are rejected with HTTP 429 and `Retry-After`."""
    max_body_kib: int = limits(4096, ge=1, why="a request has some text")
    """Most KiB of a request's body; a larger one is rejected with HTTP 413 before it is read to its end."""
    max_restarts: int = limits(3, ge=0, why="0 starts none anew")
    """Most restarts in a row of engines that died, without a run that ended in between; then the server
    ends."""
