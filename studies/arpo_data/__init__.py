"""Makers of training data for agents with tools."""
