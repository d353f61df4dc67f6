"""The CPU platform: what unmodified verl and vLLM lack to run without a GPU.

Imported only where `VERL_PLATFORM=cpu`. Each module answers one upstream behaviour and names it.
"""
