"""Files of the tiny worlds, made on first use: the warm-started models and the problems.

They lie in a per-user cache, named by what they are made of, so that a later version makes its own.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

DATA_SEED = 0
"""Seed of the generated problems; a constant, so that every run sees the same data set."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/marsrl-verl`, or a folder of this user's below the temporary one where the
    home folder can't be written."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "marsrl-verl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"marsrl-verl-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def tiny_model() -> str:
    """The folder of the tiny world's warm-started model and tokenizer."""
    from marsrl_verl.demo import assets

    return str(assets.model_path())


def tiny_data(split: str, count: int) -> str:
    """The parquet file with `count` problems of a split (`train`, `held_out`).

    The same arguments give the same file; its name holds a fingerprint of the generator's source.
    """
    from marsrl_verl.demo import problems

    def write(path: Path) -> None:
        problems.write_parquet(path, problems.Split(split), count, DATA_SEED)

    return made_once(f"tiny-{split}-{count}-{DATA_SEED}", ".parquet", str(problems.__file__), write)


def made_once(name: str, suffix: str, source: str, write: Callable[[Path], None]) -> str:
    """A file of the cache, written where it is not there yet.

    Args:
        name: of what it is made with.
        source: the generator's file, of which the name gets a fingerprint.
        write: writes it at a path.
    """
    fingerprint = hashlib.sha256(Path(source).read_bytes()).hexdigest()[:12]
    target = cache_folder() / f"{name}-{fingerprint}{suffix}"
    if not target.exists():
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        write(partial)
        os.replace(partial, target)
    return str(target)
