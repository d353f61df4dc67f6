"""The package's version and the one verl release that it is written for."""

__version__ = "0.1.0"
REQUIRED_VERL = "0.9.1"
