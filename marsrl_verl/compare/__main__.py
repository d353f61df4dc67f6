"""`python -m marsrl_verl.compare`."""

from __future__ import annotations

import sys

from marsrl_verl.compare.application import end_on_sigterm, main

if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main(sys.argv[1:]))
