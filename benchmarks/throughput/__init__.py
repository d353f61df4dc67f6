"""The parts of `rollout_throughput.py`: what is generated, the two ways to generate it, processor time."""
