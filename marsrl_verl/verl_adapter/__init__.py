"""Everything that touches verl, Ray or vLLM."""
