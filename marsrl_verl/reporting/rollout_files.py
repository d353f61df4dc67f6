"""Files of rollouts: plain or compressed, each with its index, so that any line is read by itself.

A file larger than a limit is a gzip file (`zcat` reads it) of members of a mebibyte.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from marsrl_verl.core.rows import TokenAdvantages
from marsrl_verl.reporting.files import to_json, write_bytes_parts_atomic
from marsrl_verl.reporting.rollout_index import PACKED, PLAIN, IndexBuilder, index_path, write_index
from marsrl_verl.reporting.rollout_log import Line
from marsrl_verl.settings.run_logs import RolloutLogConfig

_MEMBER = 2**20
_MIB, _GIB = 2**20, 2**30


def write_rollouts(
    folder: Path,
    name: str,
    lines: list[Line],
    settings: RolloutLogConfig,
    trained: TokenAdvantages | None = None,
) -> None:
    """Writes `NAME.jsonl`, or `NAME.jsonl.gz`, and its index.

    Args:
        folder: `rollouts/` of a run.
        lines: see `rollout_log`.
        settings: what is compressed, and what is left out; both by about so many bytes.
        trained: advantages of what a step trained, for the index.
    """
    kept = lines if settings.max_mb is None else _sampled(lines, settings.max_mb * _MIB)
    rows = IndexBuilder(trained)
    packed = sum(map(_size, kept)) > settings.compress_above_mb * _MIB
    path = folder / f"{name}{PACKED if packed else PLAIN}"
    write_bytes_parts_atomic(path, _members(kept, rows) if packed else _plain(kept, rows))
    write_index(path, rows, left_out=len(lines) - len(kept))
    (folder / f"{name}{PLAIN if packed else PACKED}").unlink(missing_ok=True)  # of an earlier attempt


def _size(line: Line) -> int:
    """About how many bytes its JSON has."""
    return 600 + len(line["prompt"]) + len(line["response"]) + len(line["final"]) + 6 * len(line["token_ids"])


def _encoded(line: Line) -> bytes:
    # Half of a surrogate pair has no encoding; written as `\ud800` it is one again for who reads JSON.
    return to_json(line).encode(errors="backslashreplace")


def _plain(lines: list[Line], rows: IndexBuilder) -> Iterator[bytes]:
    at = 0
    for line in lines:
        text = _encoded(line)
        rows.add(text, at, 0)
        yield text + b"\n"
        at += len(text) + 1


def _members(lines: list[Line], rows: IndexBuilder) -> Iterator[bytes]:
    """Gzip members of whole lines."""
    at, block = 0, bytearray()
    for number, line in enumerate(lines):
        text = _encoded(line)
        rows.add(text, at, len(block))
        block += text + b"\n"
        if len(block) >= _MEMBER or number == len(lines) - 1:
            packed = gzip.compress(bytes(block), compresslevel=6, mtime=0)
            yield packed
            at, block = at + len(packed), bytearray()


def _sampled(lines: list[Line], most: int) -> list[Line]:
    """The lines of so many problems as fit, chosen by a checksum of their ids; of one at least."""
    sizes: Counter[str] = Counter()
    for one in lines:
        sizes[one["problem"]["id"]] += _size(one)
    kept: set[str] = set()
    for problem in sorted(sizes, key=lambda one: hashlib.sha256(one.encode()).digest()):
        most -= sizes[problem]
        if most < 0 and kept:
            break
        kept.add(problem)
    return [one for one in lines if one["problem"]["id"] in kept]


def remove(path: Path) -> None:
    """Deletes a file of rollouts, which need not be there, with its index."""
    index_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def remove_oldest(folder: Path, keep_gb: float) -> int:
    """Deletes the oldest steps' files above so many gibibytes, the last one never; returns how many."""
    steps = sorted(
        (path for suffix in (PLAIN, PACKED) for path in folder.glob(f"step_*{suffix}")),
        key=lambda path: int(path.name.split(".")[0].removeprefix("step_")),
    )
    too_much = sum(one.stat().st_size for one in steps) - keep_gb * _GIB
    removed = 0
    for path in steps[:-1]:
        if too_much <= 0:
            break
        too_much -= path.stat().st_size
        remove(path)
        removed += 1
    return removed


def found(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or compressed; None: there is none."""
    both = (folder / f"{name}{suffix}" for suffix in (PLAIN, PACKED))
    return next((path for path in both if path.is_file()), None)


def rollout_files(folder: Path) -> list[Path]:
    """The files of a folder `rollouts/`: steps in their order, then evaluations."""
    every = [path for path in folder.glob("*.jsonl*") if path.name.endswith((PLAIN, PACKED))]

    def order(path: Path) -> tuple[bool, int, str]:
        name = path.name.split(".")[0]
        number = name.removeprefix("step_")
        step = name.startswith("step_") and number.isdigit()
        return not step, int(number) if step else 0, name

    return sorted(every, key=order)


def read_line(path: Path, place: Mapping[str, Any]) -> dict[str, Any]:
    """One line of a file; `place` is its row of the index."""
    with path.open("rb") as file:
        file.seek(place["member"])
        if path.name.endswith(PACKED):
            with gzip.open(file) as unpacked:
                unpacked.seek(place["begin"])
                text = unpacked.read(place["size"])
        else:
            text = file.read(place["size"])
    line: dict[str, Any] = json.loads(text)
    return line


class _Text(msgspec.Struct):
    prompt: str
    response: str


_TEXT = msgspec.json.Decoder(_Text)


def contains(line: bytes, text: str) -> bool:
    """True if prompt or response of a line has a text, letter case aside."""
    wanted = text.casefold()
    spelt = json.dumps(wanted, ensure_ascii=False)[1:-1]
    # Most lines are told by their bytes; whether the text stands among token ids is not.
    if spelt not in line.decode(errors="replace").casefold():
        return False
    try:
        found = _TEXT.decode(line)
    except msgspec.DecodeError:  # half of a surrogate pair, which JSON may spell
        plain = json.loads(line)
        found = _Text(plain["prompt"], plain["response"])
    return wanted in found.prompt.casefold() or wanted in found.response.casefold()


def read_bytes(path: Path) -> bytes:
    """A file's lines as they were before compression."""
    return gzip.decompress(path.read_bytes()) if path.name.endswith(PACKED) else path.read_bytes()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """All lines of a file."""
    with gzip.open(path, "rb") if path.name.endswith(PACKED) else path.open("rb") as file:
        for line in file:
            yield json.loads(line)
