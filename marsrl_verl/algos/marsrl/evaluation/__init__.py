"""MarsRL's evaluation: Solver, Verifier and Corrector as one system, and what each role contributes."""
