"""The generation side: rounds, rollout workers, vLLM servers, their router and their watch."""
