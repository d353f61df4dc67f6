"""The other side of the Python tool: the server, its sandboxes and the programs in them.

Standard library alone, Linux, Python 3.10 or newer: the server is started by path with an interpreter that
need not have marsrl-verl.
"""
