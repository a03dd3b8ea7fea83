"""What the budget service decides, as pure functions of what is known. Never reads a clock, a table or a message."""
