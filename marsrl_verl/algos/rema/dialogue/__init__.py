"""The two agents in a dialogue of several turns."""
