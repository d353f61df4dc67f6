"""Solutions from outside: a frozen Solver behind an endpoint, or answers from a file."""
