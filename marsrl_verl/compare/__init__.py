"""Methods against each other at equal generated tokens: suites, their runs, rows, tables and pictures."""
