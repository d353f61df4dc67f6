"""Write a method of your own: `python -m recipe.marsrl.new_method NAME`."""

from __future__ import annotations

import sys

from marsrl_verl.commands import new_method

if __name__ == "__main__":
    sys.exit(new_method())
