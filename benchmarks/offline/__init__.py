"""Carries an environment to a machine without network, in parts of a limited size."""
