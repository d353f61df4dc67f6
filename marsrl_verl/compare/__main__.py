"""`python -m marsrl_verl.compare`."""

from __future__ import annotations

import sys

from marsrl_verl.compare.application import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
