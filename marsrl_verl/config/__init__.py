"""Configuration: schema, composition with Hydra, checks before anything starts, the dry run.

Nothing here imports torch, verl, ray or vllm: a wrong configuration is rejected within a second.
"""
