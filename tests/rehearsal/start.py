"""`python -m recipe.marsrl.main_marsrl` without the check that refuses settings of GPUs on a processor."""

from __future__ import annotations

import sys

from marsrl_verl.commands import train
from marsrl_verl.config import checks

if __name__ == "__main__":
    # What it refuses without a GPU because it has no effect there is what is rehearsed.
    checks.ROUNDS = tuple(tuple(one for one in some if one.__name__ != "cpu") for some in checks.ROUNDS)
    sys.exit(train())
