"""Evaluate: `python -m recipe.marsrl.main_eval algo=… model=… data=… checkpoint=…` (see --help)."""

from __future__ import annotations

import sys

from marsrl_verl.commands import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
