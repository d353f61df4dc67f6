"""Train: `python -m recipe.marsrl.main_marsrl algo=… model=… data=… cluster=…` (see --help)."""

from __future__ import annotations

import sys

from marsrl_verl.commands import train

if __name__ == "__main__":
    sys.exit(train())
