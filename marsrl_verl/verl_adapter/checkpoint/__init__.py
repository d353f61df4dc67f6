"""Checkpoints that a crash cannot spoil."""
