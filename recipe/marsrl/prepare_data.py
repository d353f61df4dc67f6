"""Prepare training data: `python -m recipe.marsrl.prepare_data --input FILE --output FOLDER model=…`."""

from __future__ import annotations

import signal
import sys

from marsrl_verl.data_preparation.application import main

if __name__ == "__main__":
    # Ended by a batch system as by Ctrl-C: what is answered is written down first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
