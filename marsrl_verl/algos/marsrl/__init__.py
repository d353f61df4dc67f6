"""MarsRL (arXiv 2511.11373): Solver, Verifier and Corrector on shared weights. Its Solver alone is GRPO."""

METHOD = "marsrl_verl.algos.marsrl.method:MarsRL"
