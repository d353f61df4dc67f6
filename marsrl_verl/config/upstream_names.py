"""Names that verl knows: read from its source, since importing it takes many seconds."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from marsrl_verl.config.locations import verl_folder

LOSS_MEANS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
"""Values of `actor.loss_agg_mode` (verl's `ActorConfig`)."""


class UpstreamSourceError(RuntimeError):
    """verl's source is not as this package knows it; the message says what was looked for."""


@lru_cache(maxsize=1)
def policy_losses() -> tuple[str, ...]:
    """Names that verl registers for `actor.policy_loss.loss_mode`."""
    path = verl_folder() / "trainer/ppo/core_algos.py"
    found = re.findall(r"^@register_policy_loss\(\"(\w+)\"\)", path.read_text(encoding="utf-8"), re.MULTILINE)
    if "vanilla" not in found:
        raise UpstreamSourceError(f"{path} registers no policy loss 'vanilla' (found {found})")
    return tuple(found)


@lru_cache(maxsize=1)
def weight_syncs() -> tuple[str, ...]:
    """Names that verl registers for `rollout.checkpoint_engine.backend`."""
    folder = verl_folder() / "checkpoint_engine"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))
    found = re.findall(r"^@CheckpointEngineRegistry\.register\(\"(\w+)\"\)", text, re.MULTILINE)
    if "naive" not in found or "nccl" not in found:
        raise UpstreamSourceError(f"{folder} registers no weight sync 'naive' and 'nccl' (found {found})")
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1)
def loggers() -> tuple[str, ...]:
    """Names that verl accepts in `trainer.logger`."""
    path = verl_folder() / "utils/tracking.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "supported_backend":
            return tuple(ast.literal_eval(node.value))
    raise UpstreamSourceError(f"{path} has no list supported_backend")
