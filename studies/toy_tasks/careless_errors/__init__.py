"""A toy task for comparisons: longer chains than the tiny task's, worked out step by step by roles that slip.

A slip is no habit that a few updates unlearn, and it can be found by working the step out again.
"""
