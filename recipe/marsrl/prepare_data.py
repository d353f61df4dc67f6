"""Prepare training data: `python -m recipe.marsrl.prepare_data --input FILE --output FOLDER model=…`."""

from __future__ import annotations

import sys

from marsrl_verl.commands import prepare_data

if __name__ == "__main__":
    sys.exit(prepare_data())
