"""Manifest of a checkpoint: `global_step_N/manifest.json` lists every file with its size and SHA-256.

It is the last file that is written. A folder without it was interrupted, and it must name at least what a
resume reads: the plugin's state, the data's position, and the files of every rank. A resume looks at sizes,
and at the content of small files, before anything is started; `verl_adapter.checkpoint.files` reads all
of them when the ranks are there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

MANIFEST_NAME = "manifest.json"
OLD_NAME = "sealed.json"
"""Its former name, which is read for one release."""
STATE_NAME = "marsrl.pt"
"""The plugin's state."""
DATA_NAME = "data.pt"
"""File in which verl keeps the position in the data."""
MODEL = "model"
"""verl's name of the files with weights, before the world size and the rank."""

_STEP_FOLDER = re.compile(r"global_step_(\d+)")
_RANK_FILE = re.compile(r"(?P<kind>\w+)_world_size_(?P<size>\d+)_rank_(?P<rank>\d+)\.pt")
_FACTS = {"bytes", "sha256"}
_BLOCK_BYTES = 8 * 2**20
_SMALL_BYTES = 16 * 2**20
"""Files up to this size are read before the start of a resume."""

Facts = dict[str, object]
"""Facts of a manifest about a file: `bytes` and `sha256`."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used or written; the message says which file and why."""


def step_folder(root: Path, step: int) -> Path:
    """Returns the folder of a step's checkpoint."""
    return root / f"global_step_{step}"


def steps(root: Path) -> list[int]:
    """The steps that have a folder below `root`, complete or not."""
    found = (_STEP_FOLDER.fullmatch(path.name) for path in root.glob("global_step_*") if path.is_dir())
    return [int(match.group(1)) for match in found if match]


def manifest_path(folder: Path) -> Path:
    """Path of a checkpoint's manifest, which may have its former name or be missing."""
    path, old = folder / MANIFEST_NAME, folder / OLD_NAME
    return old if old.is_file() and not path.is_file() else path


def complete_steps(root: Path) -> list[int]:
    """The steps that have a complete checkpoint below `root`."""
    return [step for step in steps(root) if manifest_path(step_folder(root, step)).is_file()]


def newest_complete(root: Path) -> int | None:
    """The step of the newest complete checkpoint below `root`; interrupted ones are passed over."""
    return max(complete_steps(root), default=None)


def rank_of(name: str) -> int | None:
    """The rank that wrote a file; None for the trainer's own files."""
    match = _RANK_FILE.fullmatch(PurePosixPath(name).name)
    return int(match["rank"]) if match else None


def missing_files(names: Iterable[str]) -> list[str]:
    """Returns the files that a resume needs and a list of files lacks."""
    names = set(names)
    missing = [name for name in (STATE_NAME, DATA_NAME) if name not in names]
    groups: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for name in names:
        path = PurePosixPath(name)
        if match := _RANK_FILE.fullmatch(path.name):
            groups[str(path.parent), match["kind"], int(match["size"])].add(int(match["rank"]))
    if not any(kind == MODEL for _, kind, _ in groups):
        missing.append(f"{MODEL}_world_size_*_rank_*.pt")
    for (folder, kind, size), ranks in sorted(groups.items()):
        missing += [
            f"{folder}/{kind}_world_size_{size}_rank_{rank}.pt" for rank in sorted(set(range(size)) - ranks)
        ]
    return missing


def read_manifest(folder: Path) -> dict[str, Facts]:
    """The files of a complete checkpoint; CheckpointError if it has no manifest, or one that can't be read or
    does not name all that a resume needs."""
    path = manifest_path(folder)
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {MANIFEST_NAME}: writing it was interrupted, or another trainer wrote it"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); it is damaged") from error
    if not isinstance(recorded, dict) or not all(map(_readable, recorded.items())):
        raise CheckpointError(
            f"{path} is damaged, or of another version: expected bytes and sha256 of each file below the "
            f"folder, found {str(recorded)[:80]}"
        )
    missing = missing_files(recorded)
    # What lies there unlisted would be loaded without a look at its content.
    missing += [name for name in _read_on_resume(folder) if name not in recorded and name not in missing]
    if missing:
        raise CheckpointError(
            f"{path} is damaged: it lists {len(recorded)} files and lacks {', '.join(missing[:4])}"
            f"{', …' if len(missing) > 4 else ''}"
        )
    return recorded


def _readable(item: tuple[str, object]) -> bool:
    name, facts = item
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts
    return inside and isinstance(facts, dict) and facts.keys() == _FACTS


def _read_on_resume(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*.pt"))
    return sorted(name for name in names if rank_of(name) is not None or name in (STATE_NAME, DATA_NAME))


def check_before_start(folder: Path, *, one_node: bool) -> None:
    """Looks at a checkpoint that is going to be resumed, without reading large files. With `one_node` every
    file must lie here, else other nodes may hold those of their ranks. CheckpointError if a file is missing
    or differs from what the manifest says."""
    for name, expected in read_manifest(folder).items():
        path = folder / name
        if not path.is_file():
            if one_node or rank_of(name) is None:
                raise damaged(path, expected, None)
            continue
        size = path.stat().st_size
        found = describe(path) if size <= _SMALL_BYTES else {"bytes": size}
        if any(found[key] != value for key, value in expected.items() if key in found):
            raise damaged(path, expected, found)


def remedy(folder: Path, named: bool) -> str:
    """The remedy for a checkpoint that can't be resumed; `named`: the run was told to go on from this one
    (`trainer.resume_mode=resume_path`)."""
    if named:
        return "Restore it, or name another checkpoint, trainer.resume_from_path=…/global_step_N"
    return f"Restore it, or remove {folder} to resume from the checkpoint before it"


def damaged(
    path: Path, expected: Mapping[str, object], found: Mapping[str, object] | None
) -> CheckpointError:
    """The error for a file that is not as its manifest says."""
    return CheckpointError(
        f"{path} is damaged: expected {dict(expected)}, found {dict(found) if found else 'no such file'}"
    )


def describe(path: Path) -> Facts:
    """Size and checksum of a file."""
    checksum, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum.update(block)
            size += len(block)
    return {"bytes": size, "sha256": checksum.hexdigest()}


def checkpoint_bytes(root: Path) -> int | None:
    """Size of the newest complete checkpoint below `root`; None where there is none."""
    step = newest_complete(root)
    if step is None:
        return None
    return sum(int(str(facts["bytes"])) for facts in read_manifest(step_folder(root, step)).values())
