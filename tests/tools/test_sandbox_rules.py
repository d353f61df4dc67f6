"""What a sandbox shows of the machine, and its filter of system calls, step by step."""

from __future__ import annotations

import os
import sys

import pytest

from marsrl_verl.tools.python.config import Isolation, PythonConfig
from marsrl_verl.tools.python.isolation import layout_of, rules_for
from marsrl_verl.tools.python.jail import mounts, seccomp


def test_an_interpreter_in_somebodys_home_is_not_shown():
    with pytest.raises(OSError, match="programs must not read all of that"):
        mounts.shown([os.path.expanduser("~")])


def test_what_is_shown_is_the_interpreter_and_the_system():
    rules = rules_for(PythonConfig(target="python"), Isolation.LANDLOCK, layout_of(sys.executable))
    assert "/usr" in rules.readable and sys.base_prefix in (*rules.readable, "/usr", "/usr/local")
    for path in ("/etc", "/proc", "/tmp", "/home", "/root", "/var", os.path.expanduser("~"), "/"):
        assert path not in rules.readable


def verdict(code: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would return: a small interpreter of the filter's language."""
    fields = {0: number, 4: arch}
    for index in range(6):
        value = arguments[index] if index < len(arguments) else 0
        fields[16 + 8 * index] = value & 0xFFFFFFFF
    steps = [seccomp.struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    at = accumulator = 0
    while True:
        operation, if_true, if_false, value = steps[at]
        at += 1
        if operation == seccomp._LOAD:
            accumulator = fields[value]
        elif operation == seccomp._RETURN:
            return value
        else:
            holds = {
                seccomp._EQUAL: accumulator == value,
                seccomp._GREATER: accumulator > value,
                seccomp._ANY_BIT: bool(accumulator & value),
            }[operation]
            at += if_true if holds else if_false


X86, ARM = 0xC000003E, 0xC00000B7
ALLOW, KILL, REFUSED, ABSENT = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


@pytest.mark.parametrize(
    ("alone", "number", "arguments", "wanted"),
    [
        (False, 0, (), ALLOW),  # read
        (False, 101, (), REFUSED),  # ptrace
        (False, 41, (1,), ALLOW),  # socket(AF_UNIX)
        (False, 41, (2,), REFUSED),  # socket(AF_INET)
        (True, 41, (1,), REFUSED),
        (False, 56, (0x11,), ALLOW),  # clone as fork
        (False, 56, (0x10000011,), REFUSED),  # with a user namespace
        (True, 56, (0x11,), REFUSED),
        (True, 56, (0x003D0F00,), ALLOW),  # a thread
        (False, 435, (), ABSENT),  # clone3
        (False, 57, (), ALLOW),  # fork
        (True, 57, (), REFUSED),
        (False, 157, (1, 0), REFUSED),  # prctl(PR_SET_PDEATHSIG)
        (False, 157, (4, 0), REFUSED),  # prctl(PR_SET_DUMPABLE)
        (False, 157, (15,), ALLOW),
        (False, 9, (0, 4096, 3, 0x21), REFUSED),  # mmap(MAP_SHARED | MAP_ANONYMOUS)
        (False, 9, (0, 4096, 3, 0x23), REFUSED),  # with MAP_SHARED_VALIDATE
        (False, 9, (0, 4096, 3, 0x22), ALLOW),  # MAP_PRIVATE | MAP_ANONYMOUS
        (False, 9, (0, 4096, 3, 0x01), ALLOW),  # of a file
        (True, 9, (0, 4096, 3, 0x01), REFUSED),
        (True, 9, (0, 4096, 3, 0x22), ALLOW),
        (False, 54, (3, 1, 7), REFUSED),  # setsockopt(SO_SNDBUF)
        (False, 54, (3, 1, 32), REFUSED),  # SO_SNDBUFFORCE
        (False, 54, (3, 1, 8), ALLOW),
        (False, 46, (), ALLOW),  # sendmsg
        (True, 46, (), REFUSED),
        (False, 72, (3, 1031), REFUSED),  # fcntl(F_SETPIPE_SZ)
        (True, 72, (3, 1031), REFUSED),
        (False, 72, (3, 8), ALLOW),  # F_SETOWN, in a process namespace
        (True, 2, (0, 0), ALLOW),  # open to read
        (True, 2, (0, os.O_CREAT | os.O_WRONLY), REFUSED),
        (False, 2, (0, os.O_CREAT | os.O_WRONLY), ALLOW),
        (True, 257, (0, 0, os.O_RDWR), REFUSED),  # openat
        (True, 257, (0, 0, os.O_RDONLY | os.O_CLOEXEC), ALLOW),
        (True, 62, (77, 9), ALLOW),  # kill itself
        (True, 62, (1, 9), REFUSED),
        (True, 62, (0xFFFFFFFF, 9), REFUSED),  # kill(-1)
        (False, 62, (1, 9), ALLOW),  # in a process namespace
        (True, 302, (0,), ALLOW),  # prlimit of itself
        (True, 302, (1,), REFUSED),
        (True, 72, (0, 8), REFUSED),  # fcntl(F_SETOWN)
        (True, 72, (0, 3), ALLOW),
        (False, 999, (), ABSENT),
        (False, 0x40000000 | 1, (), KILL),  # x32
    ],
)
def test_filter_on_x86(alone, number, arguments, wanted):
    code = seccomp.build_filter(77, alone=alone, processes=True, machine="x86_64")
    assert verdict(code, X86, number, *arguments) == wanted


@pytest.mark.parametrize(
    ("alone", "number", "arguments", "wanted"),
    [
        (False, 63, (), ALLOW),  # read
        (False, 117, (), REFUSED),  # ptrace
        (False, 198, (2,), REFUSED),  # socket(AF_INET)
        (True, 56, (0, 0, os.O_WRONLY), REFUSED),  # openat
        (True, 129, (77, 9), ALLOW),  # kill itself
        (True, 129, (78, 9), REFUSED),
        (False, 220, (0x11,), ALLOW),  # clone as fork
        (False, 220, (0x20000011,), REFUSED),
        (False, 222, (0, 4096, 3, 0x21), REFUSED),  # mmap
        (False, 0, (), REFUSED),  # io_setup
    ],
)
def test_filter_on_arm(alone, number, arguments, wanted):
    code = seccomp.build_filter(77, alone=alone, processes=True, machine="aarch64")
    assert verdict(code, ARM, number, *arguments) == wanted


def test_filter_of_another_architecture():
    code = seccomp.build_filter(1, alone=False, processes=True, machine="x86_64")
    assert verdict(code, ARM, 63) == KILL
    with pytest.raises(OSError, match="no list of system calls for a riscv64"):
        seccomp.build_filter(1, alone=False, processes=True, machine="riscv64")


def test_no_processes_means_threads_alone():
    code = seccomp.build_filter(1, alone=False, processes=False, machine="x86_64")
    assert [verdict(code, X86, number) for number in (57, 58)] == [REFUSED, REFUSED]
    assert verdict(code, X86, 56, 0x003D0F00) == ALLOW and verdict(code, X86, 56, 0x11) == REFUSED
