"""What proves the package on one NVIDIA GPU: six calls of a few minutes, each a list of checks.

`docs/guides/gpu_check.md` has the commands, what each call teaches and how long it takes.
"""
