"""What the budget service keeps in PostgreSQL: the only user of the driver. Decides nothing, keeps nothing in memory."""
