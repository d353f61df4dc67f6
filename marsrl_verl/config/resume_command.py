"""The command that goes on with a run that did not finish, or starts it again."""

from __future__ import annotations

import shlex
from pathlib import Path

from omegaconf import DictConfig

from marsrl_verl.config.record import setting_of, without_values
from marsrl_verl.reporting.run_folder import Existing, has_results

_EXISTING, _MODE, _PATH = "marsrl.run.existing", "trainer.resume_mode", "trainer.resume_from_path"


def resume_command(config: DictConfig, saved: bool) -> list[str]:
    """The command line, and a line for values that are not written down.

    An evaluation alone is started again as it was typed.

    Args:
        config: the resolved configuration of the run, which holds the words that started it.
        saved: whether the run has a checkpoint of its own; one that it began from is not wanted again then.
    """
    words, hidden = without_values(config.marsrl.run.command)
    if config.trainer.val_only:
        if has_results(Path(config.marsrl.run.output_dir)):
            words = _with_existing(words, Existing.REPLACE)
    else:
        # A resume goes on from the newest checkpoint, which `disable` forbids.
        rewinding = (_MODE, _PATH) if saved or config.trainer.resume_mode == "disable" else ()
        words = [word for word in words if setting_of(word) not in rewinding]
        words = _with_existing(words, Existing.RESUME)
    lines = [shlex.join(words)]
    if hidden:
        lines.append(f"Values of {', '.join(dict.fromkeys(hidden))} are not written down: set them again.")
    return lines


def _with_existing(words: list[str], policy: Existing) -> list[str]:
    return [*(word for word in words if setting_of(word) != _EXISTING), f"{_EXISTING}={policy.value}"]
