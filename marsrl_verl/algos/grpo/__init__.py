"""GRPO (arXiv 2402.03300): one role, whose responses to a problem are compared with each other."""

METHOD = "marsrl_verl.algos.grpo.method:GRPO"
