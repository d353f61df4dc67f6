"""A toy task that nobody solves without tools: products that are too large for so small a network,
facts that stand in a corpus alone, and problems that need both."""
