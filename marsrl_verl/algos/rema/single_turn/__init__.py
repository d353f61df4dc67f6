"""A plan, then a solution; the agents are trained in turns."""
