"""MarsRL (arXiv 2511.11373): Solver, Verifier and Corrector on shared weights."""

METHOD = "marsrl_verl.algos.marsrl.method:MarsRL"
