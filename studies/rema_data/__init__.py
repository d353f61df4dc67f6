"""Makers of training data for ReMA."""
