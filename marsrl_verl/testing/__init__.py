"""A method without a model: scripted answers, everything else as in a run, in a second and without Ray."""

from marsrl_verl.testing.methods import StepRun, Turn, build_method, run_method

__all__ = ["StepRun", "Turn", "build_method", "run_method"]
