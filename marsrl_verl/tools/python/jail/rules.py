"""Rules of a server's sandboxes, and the messages of the processes around them."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

NAMESPACES, COMMAND, LANDLOCK, SECCOMP = "namespaces", "bubblewrap", "landlock", "seccomp"
"""Kinds of isolation of a sandbox (`Rules.kind`)."""
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of all sandboxes of a server."""

    kind: str
    timeout_s: float
    memory_mb: int
    """Most MiB that a program takes beside the interpreter, in all of its processes."""
    disk_mb: int
    """Size of its folder for files."""
    processes: int
    """Processes and threads that it may start; 0: no processes."""
    output_mb: int
    """A program that writes more is ended."""
    head: int
    tail: int
    """Bytes of the output that are kept."""
    echo: bool
    preload: list[str]
    readable: list[str]
    """See `mounts.shown`."""
    paths: list[str]
    """Folders of the interpreter's packages."""
    command: list[str]
    """Kind `bubblewrap`: what starts an interpreter in a sandbox, up to its own arguments."""

    @property
    def alone(self) -> bool:
        """True if sandboxes have no namespaces."""
        return self.kind in (LANDLOCK, SECCOMP)


@dataclass(slots=True)
class Site:
    """A server's surroundings, as far as it needs them."""

    proc: int
    """Descriptor of the machine's `/proc`."""
    as_root: bool = False
    """Root inside the mounts, without a user namespace."""
    first_user: int | None = None
    """First of the users that programs run as, one per slot, for a server that is root."""
    socket_bytes: int = 0
    """The most memory that a Unix socket's buffers take."""
    address_space: int = 0
    """Bytes of address space that the interpreter has by itself."""


def framed(message: Mapping[str, Any]) -> bytes:
    """A message: its length in 4 bytes, and JSON."""
    data = json.dumps(message).encode()
    return struct.pack("<I", len(data)) + data


def send(place: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends a message."""
    place.sendall(framed(message))


def receive(place: socket.socket) -> dict[str, Any] | None:
    """Waits for a message; None at the end."""
    return unframed(partial(_exactly, place))


def unframed(read: Callable[[int], bytes]) -> dict[str, Any] | None:
    """The message in what is read, in so many bytes at a time; None if the end comes before its own."""
    head = read(4)
    size = struct.unpack("<I", head)[0] if len(head) == 4 else 0
    data = read(size)
    return json.loads(data) if 0 < len(data) == size else None


def _exactly(place: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (chunk := place.recv(min(count - len(data), 65536))):
        data += chunk
    return bytes(data)


def content(folder: int, name: str) -> str:
    """The beginning of a file in `/proc`, of which `folder` is a descriptor."""
    place = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(place, 65536).decode("ascii", "replace")
    finally:
        os.close(place)
