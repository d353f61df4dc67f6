"""Models behind OpenAI-compatible endpoints: their settings, their answers, and who asks them."""
