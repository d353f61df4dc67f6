"""Grade a run's rollouts again: `python -m recipe.marsrl.rescore outputs/RUN [reward=…]` (see --help)."""

from __future__ import annotations

import sys

from marsrl_verl.commands import rescore

if __name__ == "__main__":
    sys.exit(rescore())
