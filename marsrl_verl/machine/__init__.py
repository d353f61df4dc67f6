"""What a machine has: installed packages, GPUs and proxies, asked without importing torch, verl or vLLM."""
