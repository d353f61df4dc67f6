"""What a machine has: installed packages, GPUs, proxies, asked without importing torch, verl or vLLM."""
