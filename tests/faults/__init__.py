"""Real servers and processes that are killed, cut off and started again."""
