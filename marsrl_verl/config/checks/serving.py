"""Checks of a server's address and key."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.command_line import SERVE
from marsrl_verl.settings.api_key import ApiKeyError, read_api_key
from marsrl_verl.settings.issues import ConfigIssue

_NODE = "marsrl.serve"


def check_server(ctx: Context) -> Iterator[ConfigIssue]:
    """The port is free, the key is where the settings say, and there is one where others reach the server."""
    serve = ctx.settings.serve
    if not serve.enabled:
        return
    if not ctx.config.trainer.val_only:
        what, fix = "A run that trains serves nobody.", f"Leave it out; {SERVE} serves, and sets it."
        yield ctx.issue(f"{_NODE}.enabled", what, fix)
        return
    if serve.api_key_env is not None and serve.api_key_file is not None:
        yield ctx.issue(f"{_NODE}.api_key_file", "Two places of a key are named.", "Leave one of them out.")
        return
    if serve.api_key_env is None and serve.api_key_file is None and not _is_loopback(serve.host):
        what = "Others reach this address, and no key is asked for."
        fix = f"Name the variable that holds one: {_NODE}.api_key_env=NAME, or leave the host out."
        yield ctx.issue(f"{_NODE}.host", what, fix)
    if ctx.dry_run:
        return
    try:
        read_api_key(serve)
    except ApiKeyError as error:
        fix = "Put the key there; it is a word of printable characters."
        yield ctx.issue(f"{_NODE}.{error.setting}", f"{error.found[:1].upper()}{error.found[1:]}.", fix)
    try:
        socket.create_server((serve.host, serve.port)).close()
    except OSError as error:
        what = f"Nothing can listen at {serve.host}:{serve.port}: {error.strerror or error}."
        yield ctx.issue(f"{_NODE}.port", what, "Choose another port or host.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
