"""Credit of tokens: advantages, masks of tokens left out of the loss, and the loss itself."""

from marsrl_verl.core.credit.estimator import (
    Estimator,
    EstimatorConfig,
    EstimatorCredit,
    MaskedConfig,
    MaskingCredit,
)
from marsrl_verl.core.credit.interface import Credit, LossSpec

__all__ = [
    "Credit",
    "Estimator",
    "EstimatorConfig",
    "EstimatorCredit",
    "LossSpec",
    "MaskedConfig",
    "MaskingCredit",
]
