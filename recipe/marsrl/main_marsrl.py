"""Train: `python -m recipe.marsrl.main_marsrl algo=… model=… data=… cluster=…` (see --help)."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from marsrl_verl.config.application import main


def _launch(config: DictConfig) -> int:
    # Imported late: verl takes seconds to import, and a wrong configuration never gets here.
    from marsrl_verl.verl_adapter.launch import run

    return run(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _launch))
