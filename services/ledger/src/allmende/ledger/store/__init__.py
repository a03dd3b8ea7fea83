"""The books in PostgreSQL: the only user of the driver. Decides nothing, keeps nothing in memory."""
