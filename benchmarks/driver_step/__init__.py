"""The driver's work in a training step: neutral inputs, what is measured, and an implementation per API."""
