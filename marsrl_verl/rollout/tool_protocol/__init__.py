"""How a model writes a tool call, and how it reads the result."""
