"""Turns a set of problems into verl's training data: without duplicates, filtered by how often the start
model solves them (UloRL, arXiv 2507.19766, §3.4).

`marsrl_verl.data` reads rows and turns them into problems, `sampling` has the start model answer and the
training's grader judge, `grades` keeps what is known, `selection` filters and splits, `output` writes files
and report.
"""
