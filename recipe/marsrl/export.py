"""Export trained policies: `python -m recipe.marsrl.export checkpoint=RUN target=FOLDER` (see --help)."""

from __future__ import annotations

import sys

from marsrl_verl.commands import export

if __name__ == "__main__":
    sys.exit(export())
