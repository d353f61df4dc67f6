"""Toy tasks beside the tiny one, each in a package of its name."""
