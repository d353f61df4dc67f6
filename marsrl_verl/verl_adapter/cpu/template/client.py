"""Asks the template process for a fork that runs the given command line, and stands for it.

Runs as `python -I -S client.py ARGUMENTS…`, ARGUMENTS being those of a Python interpreter, and imports
next to nothing. It passes signals on and ends with the status of the fork. Where no template answers,
it becomes the ordinary interpreter.
"""

import json
import os
import signal
import socket
import struct
import sys

SOCKET_VARIABLE = "MARSRL_TEMPLATE_SOCKET"
PYTHON_VARIABLE = "MARSRL_TEMPLATE_PYTHON"
REPLY = struct.Struct("!ii")
"""Two integers: kind (`STARTED` or `ENDED`) and process id or wait status."""
LENGTH = struct.Struct("!I")
STARTED, ENDED = 0, 1
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_CONNECT_SECONDS = 30.0


def open_descriptors() -> "list[int]":
    """The open file descriptors of this process, standard streams included."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the listing's own descriptor, closed by now
        found.append(int(name))
    return sorted(found)


def connect(name: str) -> socket.socket:
    """A connection to the template that listens at the abstract socket `name`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    connection.connect("\0" + name)
    connection.settimeout(None)
    return connection


def send_request(connection: socket.socket, argv: "list[str]", descriptors: "list[int]") -> None:
    """Sends command line, environment, folder and open files."""
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "argv": argv,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": umask,
        "descriptors": descriptors,
    }
    payload = json.dumps(request).encode()
    socket.send_fds(connection, [LENGTH.pack(len(payload))], descriptors)
    connection.sendall(payload)


def receive_reply(connection: socket.socket) -> "tuple[int, int] | None":
    """The next reply, or None when the template has gone."""
    data = b""
    while len(data) < REPLY.size:
        try:
            part = connection.recv(REPLY.size - len(data))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    kind, value = REPLY.unpack(data)
    return kind, value


def end_like(status: int) -> None:
    """Ends this process the way the wait status says: same exit code or same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def _become_interpreter(argv: "list[str]") -> None:
    python = os.environ[PYTHON_VARIABLE]
    os.execv(python, [python, *argv])


def main(argv: "list[str]") -> None:
    """Runs `argv` in a fork of the template; never returns."""
    if any("multiprocessing.resource_tracker" in argument for argument in argv):
        # It imports next to nothing, and it has to outlive every other process: it removes what they
        # leave in shared memory when they are killed.
        _become_interpreter(argv)
    descriptors = open_descriptors()
    # A signal that comes when the fork runs and its number is not known yet would end this process only.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        connection = connect(os.environ[SOCKET_VARIABLE])
        send_request(connection, argv, descriptors)
        reply = receive_reply(connection)
    except OSError:
        reply = None
    if reply is None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _become_interpreter(argv)
        return
    pid = reply[1]
    for number in FORWARDED:
        signal.signal(number, lambda received, _frame: os.kill(pid, received))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # The fork holds them now. Without this, a reader would wait for this process's copies too.
    for descriptor in descriptors:
        if descriptor > 2:
            os.close(descriptor)
    reply = receive_reply(connection)
    end_like(reply[1] if reply is not None else 1 << 8)


if __name__ == "__main__":
    main(sys.argv[1:])
