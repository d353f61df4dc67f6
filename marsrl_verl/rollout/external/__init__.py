"""Frozen policies: a model behind an endpoint, or answers from a file."""
