"""Formats in which a model writes tool calls and reads their results."""
