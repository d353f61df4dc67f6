"""Inputs of a method's policy loss, and how it is averaged; torch only, below the methods."""
