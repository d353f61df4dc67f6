"""Show a problem's way through a recorded run: `python -m recipe.marsrl.replay outputs/RUN --problem ID`."""

from __future__ import annotations

import sys

from marsrl_verl.commands import replay

if __name__ == "__main__":
    sys.exit(replay())
