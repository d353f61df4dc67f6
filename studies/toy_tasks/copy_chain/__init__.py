"""A toy task for branching: long responses whose lines are copied, but for two that are computed and cited by
later ones. Whether a response is right is decided at these two.
"""
