"""The driver: the method, the scheduler, the rows of a step, and what the workers are asked to do."""
