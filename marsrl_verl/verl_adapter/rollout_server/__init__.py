"""The vLLM side of generation: servers, their router, and the client of the rollout programs."""
