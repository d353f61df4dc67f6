"""The browser tool: one page, as readable text or as a model's summary of it."""
