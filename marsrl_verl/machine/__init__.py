"""What a machine has: installed packages and GPUs, asked without importing torch, verl or vLLM."""
