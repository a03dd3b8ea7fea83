"""What a history says: the figures of contract §10."""
