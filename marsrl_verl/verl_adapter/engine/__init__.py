"""On the ranks: verl's worker and FSDP engine with probes, shared prefixes and exact row counts."""
