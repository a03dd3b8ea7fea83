"""The values that admission reasons about, and the books that hold them in memory."""
