"""Takes what is for other GPUs out of a CUDA library; nothing else moves, and what was freed compresses to
nothing.

A library has its kernels in containers (the section `.nv_fatbin`): a header, then entries, each with a header
of its own and either machine code of one architecture or PTX, which the driver compiles. Machine code runs on
GPUs of its own major generation alone. PTX is kept: it may be all that a kernel has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""Of a container: number, version, size of the header; the size of the entries follows (8 bytes)."""
_SIZE = struct.Struct("<Q")
HEADER = len(MAGIC) + _SIZE.size
ENTRY = struct.Struct("<HHIQIIHHI")
"""kind, -, size of the header, size of what follows, compressed size, -, minor, major, architecture."""
PTX, MACHINE_CODE = 1, 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel file in a container; from its header to its end."""

    kind: int
    architecture: int
    start: int
    end: int

    def runs_on(self, architecture: int) -> bool:
        return self.kind == PTX or self.architecture // 10 == architecture // 10


def containers(data: bytes | bytearray) -> Iterator[tuple[int, int, list[Entry]]]:
    """(start, end, entries) of each container; one that is laid out otherwise is passed over."""
    at = data.find(MAGIC)
    while at >= 0:
        place = at + HEADER
        end = place + (_SIZE.unpack_from(data, at + len(MAGIC))[0] if place <= len(data) else len(data))
        found = []
        while place + ENTRY.size <= end <= len(data):
            kind, _, header, length, *_, architecture = ENTRY.unpack_from(data, place)
            if kind not in (PTX, MACHINE_CODE) or place + header + length > end:
                break
            found.append(Entry(kind, architecture, place, place + header + length))
            place = found[-1].end
        whole = bool(found) and place == end
        if whole:
            yield at, end, found
        at = data.find(MAGIC, end if whole else at + len(MAGIC))


def prune(data: bytearray, architecture: int) -> int:
    """Takes machine code of other major generations out of all containers, in place; how many bytes that
    were.

    A container that has nothing else keeps its smallest entry: an empty one is none.

    Args:
        data: a library.
        architecture: of the GPU, 90 for Hopper.
    """
    freed = 0
    for start, end, found in list(containers(data)):
        kept = [one for one in found if one.runs_on(architecture)]
        kept = kept or [min(found, key=lambda one: one.end - one.start)]
        content = b"".join(data[one.start : one.end] for one in kept)
        data[start + HEADER : end] = content.ljust(end - start - HEADER, b"\0")
        _SIZE.pack_into(data, start + len(MAGIC), len(content))
        freed += end - start - HEADER - len(content)
    return freed
