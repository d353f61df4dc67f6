"""Methods by their name in the configuration (`marsrl.algo.name`)."""

from __future__ import annotations

from marsrl_verl.algos.attnrl.method import AttnRL
from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.algorithm import Algorithm

MARSRL, ATTNRL = "marsrl", "attnrl"
ALGORITHMS: dict[str, type[Algorithm]] = {MARSRL: MarsRL, ATTNRL: AttnRL}


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of a method.

    Raises:
        ValueError: no method has this name; the message lists those that exist.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"algo.name is {name!r}, known methods: {', '.join(sorted(ALGORITHMS))}")
    return ALGORITHMS[name]
