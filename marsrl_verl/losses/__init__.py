"""What a method's policy loss reads and how it is averaged; torch only, below the methods."""
