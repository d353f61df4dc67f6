"""Facts about a machine (installed packages, GPUs, proxies), found without importing torch, verl or vLLM."""
