"""A run as a process: launch, the cluster, the run folder, the end."""
