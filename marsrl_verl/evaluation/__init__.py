"""Evaluation of the roles and of the system they form: runs, metrics, intervals."""
