"""Play a role oneself: `python -m recipe.marsrl.play`."""

from __future__ import annotations

import sys

from marsrl_verl.commands import play

if __name__ == "__main__":
    sys.exit(play())
