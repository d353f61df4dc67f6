"""The system calls that a sandboxed program may make.

Everything that computes, maps memory, starts threads and works with files that are already in reach is
allowed. What looks into other processes, changes the machine, makes namespaces or sockets, or holds memory
that no limit counts is not. `alone` forbids more, for levels without namespaces: processes, signals to others
and every change of a file.
"""

from __future__ import annotations

import errno
import os
import struct

from .syscalls import ANY_NAMESPACE, CLONE_THREAD, MACHINE

_X86, _ARM = "x86_64", "aarch64"
_ARCHITECTURE = {_X86: 0xC000003E, _ARM: 0xC00000B7}
_NEWEST = 470
"""Calls with a higher number are newer than this list: they do not exist."""

_NEVER: dict[str, tuple[int | None, int | None]] = {
    # Other processes.
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "ioprio_set": (251, 30),
    # Namespaces, mounts, roots.
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "statmount": (457, 457), "listmount": (458, 458),
    "open_tree_attr": (467, 467), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # The machine.
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116), "vhangup": (153, 58),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "nfsservctl": (180, 42), "lookup_dcookie": (212, 18), "uselib": (134, None), "sysfs": (139, None),
    "personality": (135, 92),
    # Large parts of the kernel that no computation needs.
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "vmsplice": (278, 75),
    # Memory that no limit counts.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "io_setup": (206, 0), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "landlock_create_ruleset": (444, 444),
}  # fmt: skip
_ABSENT: dict[str, tuple[int | None, int | None]] = {"clone3": (435, 435), "openat2": (437, 437)}
"""Their arguments lie in memory, which a filter does not see: the C library then makes the older call."""
_ALONE: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "socket": (41, 198), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sendmsg": (46, 211), "sendmmsg": (307, 269), "setpriority": (141, 140),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    # Changes of files.
    "creat": (85, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "link": (86, None), "linkat": (265, 37), "symlink": (88, None),
    "symlinkat": (266, 36), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None), "fchown": (93, 55),
    "fchownat": (260, 54), "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47),
    "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88), "futimesat": (261, None),
    "mknod": (133, None), "mknodat": (259, 33), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466),
}  # fmt: skip
_CLONE, _SOCKET, _PRCTL, _KILL = (56, 220), (41, 198), (157, 167), (62, 129)
_TGKILL, _PRLIMIT, _AFFINITY = (234, 131), (302, 261), (203, 122)
_OPEN, _OPENAT, _FCNTL, _IOCTL = (2, None), (257, 56), (72, 25), (16, 29)
_MMAP, _SETSOCKOPT = (9, 222), (54, 208)

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | 0o20000000
"""Flags of `open` that change a file; the last one makes a nameless one."""
_AF_UNIX = 1
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_SEND_BUFFERS = (7, 32)
"""SO_SNDBUF, SO_SNDBUFFORCE: all sockets' memory is counted as that of one with the usual size."""
_PIPE_SIZE = 1031
"""F_SETPIPE_SZ."""
_OWNER_COMMANDS = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX: they would have the kernel send signals."""
_OWNER_REQUESTS = (0x8901, 0x8902)
"""FIOSETOWN, SIOCSPGRP: likewise."""

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSED, _NO_SUCH_CALL = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
_NUMBER, _ARCHITECTURE_FIELD, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
_X32 = 0x40000000


def build_filter(pid: int, *, alone: bool, processes: bool, machine: str = MACHINE) -> bytes:
    """The filter as an array of `struct sock_filter`, for a process that may start `processes`, and that is
    `alone` where it has no namespaces of its own: it may signal none but itself (`pid`) then."""
    if machine not in _ARCHITECTURE:
        raise OSError(f"no list of system calls for a {machine}")
    column = 0 if machine == _X86 else 1
    code = [
        _step(_LOAD, _ARCHITECTURE_FIELD),
        _step(_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _step(_RETURN, _KILL_PROCESS),
        _step(_LOAD, _NUMBER),
    ]
    if machine == _X86:  # the same calls under other numbers
        code += [_step(_ANY_BIT, _X32, 0, 1), _step(_RETURN, _KILL_PROCESS)]
    code += [_step(_GREATER, _NEWEST, 0, 1), _step(_RETURN, _NO_SUCH_CALL)]

    def never(numbers: tuple[int | None, int | None], verdict: int = _REFUSED) -> None:
        if (number := numbers[column]) is not None:
            code.extend([_step(_EQUAL, number, 0, 1), _step(_RETURN, verdict)])

    def look(numbers: tuple[int | None, int | None], argument: int, tests: list[bytes]) -> None:
        """Looks at the lower half of an argument; `tests` end in a return, or fall through and are
        allowed."""
        if (number := numbers[column]) is not None:
            body = [_step(_LOAD, _ARGUMENTS + 8 * argument), *tests, _step(_RETURN, _ALLOW)]
            code.extend([_step(_EQUAL, number, 0, len(body)), *body])

    def only(*values: int) -> list[bytes]:
        """Allows these values alone."""
        passes = [_step(_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]
        return [*passes, _step(_RETURN, _REFUSED)]

    def none_of(*values: int) -> list[bytes]:
        return [part for one in values for part in (_step(_EQUAL, one, 0, 1), _step(_RETURN, _REFUSED))]

    for numbers in _NEVER.values():
        never(numbers)
    for numbers in _ABSENT.values():
        never(numbers, _NO_SUCH_CALL)
    flags = [_step(_ANY_BIT, ANY_NAMESPACE, 0, 1), _step(_RETURN, _REFUSED)]
    if alone or not processes:
        flags += [_step(_ANY_BIT, CLONE_THREAD, 1, 0), _step(_RETURN, _REFUSED)]
        never(_ALONE["fork"])
        never(_ALONE["vfork"])
    look(_CLONE, 0, flags)
    look(_PRCTL, 0, none_of(_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE))
    look(_SETSOCKOPT, 2, none_of(*_SEND_BUFFERS))
    # What is shared and lies in no file stays in memory when all but a page of it is no longer mapped. Alone,
    # there is nobody to share with.
    nameless = [] if alone else [_step(_ANY_BIT, _MAP_ANONYMOUS, 0, 1)]
    look(_MMAP, 3, [_step(_ANY_BIT, _MAP_SHARED, 0, len(nameless) + 1), *nameless, _step(_RETURN, _REFUSED)])
    if not alone:
        look(_FCNTL, 1, none_of(_PIPE_SIZE))
        look(_SOCKET, 0, only(_AF_UNIX))
    else:
        for numbers in _ALONE.values():
            never(numbers)
        writes = [_step(_ANY_BIT, _WRITES, 0, 1), _step(_RETURN, _REFUSED)]
        look(_OPEN, 1, writes)
        look(_OPENAT, 2, writes)
        look(_KILL, 0, only(pid))
        look(_TGKILL, 0, only(pid))
        look(_PRLIMIT, 0, only(0, pid))
        look(_AFFINITY, 0, only(0, pid))
        look(_FCNTL, 1, none_of(*_OWNER_COMMANDS, _PIPE_SIZE))
        look(_IOCTL, 1, none_of(*_OWNER_REQUESTS))
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One `struct sock_filter`; jumps count the steps that they leave out."""
    return struct.pack("=HBBI", operation, if_true, if_false, value)
