"""A start of SmolLM2 for the roles of MarsRL."""
