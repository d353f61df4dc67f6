"""Forward Context Influence (FCI): how much later reasoning looks back at a step; needs torch alone."""
