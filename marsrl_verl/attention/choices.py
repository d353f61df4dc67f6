"""Settings with a closed set of values, apart from the tensor code that they choose in."""

from __future__ import annotations

from marsrl_verl.settings.choices import Choice


class FciBackend(Choice):
    """Implementation that computes the column sums."""

    AUTO = "auto"
    """Triton on an NVIDIA GPU where it is installed and has a kernel for the head size, else chunked."""
    TRITON = "triton"
    CHUNKED = "chunked"
