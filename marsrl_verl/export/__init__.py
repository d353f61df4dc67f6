"""Trained policies as Hugging Face folders, each with a model card."""
