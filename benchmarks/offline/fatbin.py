"""Empties what a CUDA library holds for other GPUs: it compresses to nothing, and nothing moves.

A library has its kernels in containers (the section `.nv_fatbin`): a header, then entries, each with a header
of its own and either machine code of one architecture or PTX, which the driver compiles. Machine code runs on
GPUs of its own major generation alone, so that of others is never read. PTX is kept: it may be all that a
kernel has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""Of a container: number, version, size of the header."""
_CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIHHI")
"""kind, -, size of the header, size of what follows, compressed size, -, minor, major, architecture."""
MACHINE_CODE, PTX = 2, 1


def entries(data: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """(kind, architecture, start, end) of what each entry of all containers holds."""
    at = data.find(MAGIC)
    while at >= 0:
        _, _, header, size = _CONTAINER.unpack_from(data, at)
        place, end = at + header, at + header + size
        if end > len(data):  # these bytes are no container
            at = data.find(MAGIC, at + len(MAGIC))
            continue
        while place + ENTRY.size <= end:
            kind, _, own, length, _, _, _, _, architecture = ENTRY.unpack_from(data, place)
            if kind not in (MACHINE_CODE, PTX) or place + own + length > end:
                break
            yield kind, architecture, place + own, place + own + length
            place += own + length
        at = data.find(MAGIC, end)


def prune(data: bytearray, architecture: int) -> int:
    """Fill machine code of other major generations with zeros, in place; how many bytes that were.

    Args:
        data: a library.
        architecture: of the GPU, 90 for Hopper.
    """
    emptied = 0
    for kind, found, start, end in list(entries(data)):
        if kind == MACHINE_CODE and found // 10 != architecture // 10:
            data[start:end] = bytes(end - start)
            emptied += end - start
    return emptied
