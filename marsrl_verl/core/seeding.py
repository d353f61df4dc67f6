"""Random generators as a function of the run's seed and of names, never of the order of calls.

A choice that is made for one problem at one stage draws from a generator of its own, derived from
(seed, problem, stage). Nothing has to be saved for it in a checkpoint, and samples may complete in
any order.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, *names: str | int) -> int:
    """A 64-bit seed that is the same on every machine and in every process.

    Args:
        seed: the run's seed.
        names: what the seed is for, e.g. a problem id and a stage. The boundaries between names
            count, and so does their type: ("ab", "c"), ("a", "bc") and (1,), ("1",) all differ.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in (seed, *names):
        kind = b"i" if isinstance(name, int) else b"s"
        data = str(name).encode("utf-8", "surrogatepass")
        digest.update(kind + len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def derive_generator(seed: int, *names: str | int) -> np.random.Generator:
    """A fresh numpy generator for one purpose (see `derive_seed`)."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *names)))
