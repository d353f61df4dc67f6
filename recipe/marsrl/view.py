"""View runs: `python -m recipe.marsrl.view outputs/RUN …` (see --help)."""

from __future__ import annotations

import sys

from marsrl_verl.commands import view

if __name__ == "__main__":
    sys.exit(view())
