"""Rollouts in the formats of others: `python -m recipe.marsrl.export_rollouts RUN …` (see --help)."""

from __future__ import annotations

import sys

from marsrl_verl.commands import export_rollouts

if __name__ == "__main__":
    sys.exit(export_rollouts())
