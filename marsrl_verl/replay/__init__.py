"""Recorded rollouts: graded again, traced, and written in the formats of others."""
