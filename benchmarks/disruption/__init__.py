"""The parts of `attention_disruption.py`: problems and their grading, sampling with hidden tokens, which
steps are hidden, the study of one seed, its figures."""
