"""Tools that a model may call: the interface, the box that a rollout sees, and the built-in ones."""
