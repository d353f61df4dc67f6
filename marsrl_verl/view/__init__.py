"""A local page that shows runs: curves, results, and every rollout."""
