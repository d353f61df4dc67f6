"""The template process: a single-threaded loop that forks a child per request."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from marsrl_verl.verl_adapter.cpu.template import child
from marsrl_verl.verl_adapter.cpu.template.client import ENDED, LENGTH, REPLY, STARTED

_MAX_DESCRIPTORS = 253  # the kernel's limit for one message
_CREDENTIALS = struct.Struct("3i")
_GRACE_SECONDS = 5.0


@dataclass(slots=True)
class _Child:
    pid: int
    pidfd: int
    connection: socket.socket


class TemplateServer:
    """Serves requests at a listening unix socket until the other end of the pipe `lifeline`, its launcher's,
    is closed."""

    def __init__(self, listener: socket.socket, lifeline: int) -> None:
        self._listener = listener
        self._lifeline = lifeline
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Forks children on request; returns when the launcher has ended and no child is left."""
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._lifeline, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._lifeline:
                    self._end_children()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Child):
                    self._attend(key.data, ended=key.fileobj == key.data.pidfd)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(peer)
        if uid != os.getuid():
            connection.close()
            return
        try:
            request = receive_request(connection)
        except (OSError, ValueError, EOFError) as error:
            print(f"template process: unreadable request ({error})", file=sys.stderr)
            connection.close()
            return
        sys.stdout.flush()
        sys.stderr.flush()
        template_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            child.become(request, template_pid)
        for descriptor in request.received:
            os.close(descriptor)
        entry = _Child(pid, os.pidfd_open(pid), connection)
        self._children[pid] = entry
        self._selector.register(entry.pidfd, selectors.EVENT_READ, entry)
        self._selector.register(connection, selectors.EVENT_READ, entry)
        self._reply(entry, STARTED, pid)

    def _attend(self, entry: _Child, ended: bool) -> None:
        """A child has ended, or the client that stands for it has."""
        if entry.pid not in self._children:
            return  # both in the same round
        if not ended:
            # Whoever killed the client meant the child.
            self._selector.unregister(entry.connection)
            os.kill(entry.pid, signal.SIGKILL)
            return
        _, status = os.waitpid(entry.pid, 0)
        del self._children[entry.pid]
        self._selector.unregister(entry.pidfd)
        os.close(entry.pidfd)
        if entry.connection.fileno() in self._selector.get_map():
            self._selector.unregister(entry.connection)
        self._reply(entry, ENDED, status)
        entry.connection.close()

    @staticmethod
    def _reply(entry: _Child, kind: int, value: int) -> None:
        with suppress(OSError):  # the client is gone; the loop sees its closed connection
            entry.connection.sendall(REPLY.pack(kind, value))

    def _end_children(self) -> None:
        """Waits a moment for the children (Ray tells its workers to end), then kills what is left."""
        self._listener.close()
        deadline = time.monotonic() + _GRACE_SECONDS
        for entry in self._children.values():
            os.kill(entry.pid, signal.SIGTERM)
        while self._children and time.monotonic() < deadline:
            for pid in list(self._children):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._children[pid]
            time.sleep(0.05)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def receive_request(connection: socket.socket) -> child.Request:
    """One request; EOFError: the client ended before it was complete."""
    header, received, _, _ = socket.recv_fds(connection, LENGTH.size, _MAX_DESCRIPTORS)
    try:
        header += _receive(connection, LENGTH.size - len(header))
        fields = json.loads(_receive(connection, *LENGTH.unpack(header)))
        if len(fields["descriptors"]) != len(received):
            raise ValueError(f"{len(fields['descriptors'])} descriptors announced, {len(received)} received")
        return child.Request(**fields, received=received)
    except BaseException:
        for descriptor in received:
            os.close(descriptor)
        raise


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := connection.recv(count - len(data))):
            raise EOFError("the client ended before its request was complete")
        data += part
    return data
