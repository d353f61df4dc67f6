"""A method's system behind OpenAI's chat completions."""
