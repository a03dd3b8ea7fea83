"""A lab's own past again: as it was, under today's tree, under a proposal."""
