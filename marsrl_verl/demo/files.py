"""Files of the demos: the warm-started tiny model, and the problems, made on first use.

They lie in a per-user cache, named by what they are made of, so that a later version makes its own.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marsrl_verl.machine.cache import cache_folder

DATA_SEED = 0
"""Seed of the generated problems; a constant, so that every run sees the same data set."""


_PACKAGES = {"tiny": "marsrl_verl.demo", "smollm2": "marsrl_verl.demo.smollm2"}


def tiny_model() -> str:
    """The folder of the tiny task's warm-started model and tokenizer."""
    from marsrl_verl.demo import assets

    return assets.model_path()


def tiny_data(split: str, count: int, task: str = "tiny", *levels: int) -> str:
    """The parquet file with `count` problems of a split (`train`, `held_out`); of some levels alone, in turn,
    where the task has levels and these are named.

    The same arguments give the same file; its name holds a fingerprint of the generator's source, of the
    usual task's, whose parts others use, and of the further files that it names (`SOURCES`).

    Args:
        task: `tiny`, `smollm2`, or the dotted name of a package that has a module `problems`.
    """
    from marsrl_verl.demo import problems

    generator = importlib.import_module(f"{_PACKAGES.get(task, task)}.problems")

    def write(path: Path) -> None:
        of_levels = [levels] if levels else []
        write_rows(path, generator.rows(problems.Split(split), count, DATA_SEED, *of_levels))

    files = (str(generator.__file__), str(problems.__file__), *getattr(generator, "SOURCES", ()))
    name = "-".join(map(str, (task.rpartition(".")[2], split, count, DATA_SEED, *levels)))
    return made_once(name, ".parquet", tuple(dict.fromkeys(files)), write)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as a parquet file."""
    import pandas as pd  # only writers need it

    pd.DataFrame(rows).to_parquet(path, index=False)


def made_once(name: str, suffix: str, sources: Sequence[str], write: Callable[[Path], None]) -> str:
    """A file of the cache, written where it is not there yet.

    Args:
        name: of what it is made with.
        sources: the generator's files, of which the name gets a fingerprint.
        write: writes it at a path.
    """
    content = b"".join(Path(source).read_bytes() for source in sources)
    fingerprint = hashlib.sha256(content).hexdigest()[:12]
    target = cache_folder() / f"{name}-{fingerprint}{suffix}"
    if not target.exists():
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        write(partial)
        os.replace(partial, target)
    return str(target)
