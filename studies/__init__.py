"""What studies of the package are made with: toy tasks, warm starts, sanity checks, makers of data, suites.

It lies in a clone of the repository alone. It imports `marsrl_verl`, which never imports it.
"""
