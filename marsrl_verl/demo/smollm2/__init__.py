"""SmolLM2-135M-Instruct, a real language model that trains on two processor cores, and word problems for
it."""
