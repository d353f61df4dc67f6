"""Methods by their name in the configuration (`marsrl.algo.name`)."""

from __future__ import annotations

from marsrl_verl.algos.marsrl import MarsRL

ALGORITHMS: dict[str, type[MarsRL]] = {"marsrl": MarsRL}


def algorithm_class(name: str) -> type[MarsRL]:
    """The class of a method.

    Raises:
        ValueError: no method has this name; the message lists those that exist.
    """
    if name not in ALGORITHMS:
        raise ValueError(f"algo.name is {name!r}, known methods: {', '.join(sorted(ALGORITHMS))}")
    return ALGORITHMS[name]
