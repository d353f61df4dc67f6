"""Methods against each other at an equal budget: suites, their runs, rows, tables and pictures."""
