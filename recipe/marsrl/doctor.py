"""Look at this machine: `python -m recipe.marsrl.doctor` says what a run lacks here, and how to get it."""

from __future__ import annotations

import sys

from marsrl_verl.commands import doctor

if __name__ == "__main__":
    sys.exit(doctor())
