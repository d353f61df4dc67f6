"""Serve: `python -m recipe.marsrl.serve algo=… model=… checkpoint=…` (see --help)."""

from __future__ import annotations

import sys

from marsrl_verl.commands import serve

if __name__ == "__main__":
    sys.exit(serve())
