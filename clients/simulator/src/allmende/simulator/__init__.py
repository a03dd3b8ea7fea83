"""The services' own rules on a virtual clock: what would have happened, before it does."""
