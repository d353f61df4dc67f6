"""MarsRL and its relatives as a plugin for verl.

Importing this package imports neither torch nor verl.
"""

from marsrl_verl.version import REQUIRED_VERL, __version__

__all__ = ["REQUIRED_VERL", "__version__"]
