"""The Python tool: programs of a model in sandboxes of their own, or on a server elsewhere."""
