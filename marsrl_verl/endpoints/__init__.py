"""Models behind OpenAI-compatible endpoints: their settings, their answers, and their clients."""
