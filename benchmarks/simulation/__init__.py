"""Parts of the scheduler simulation (`benchmarks/scheduler_simulation.py`)."""
