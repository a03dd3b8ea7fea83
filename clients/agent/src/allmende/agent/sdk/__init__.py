"""What every agent shares: take orders, report nodes, count time, say how attempts ended. An agent's author writes a `Backend`."""
