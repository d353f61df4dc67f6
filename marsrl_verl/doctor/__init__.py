"""Reports what a machine lacks for a run, and how to get it."""
