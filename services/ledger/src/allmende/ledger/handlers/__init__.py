"""Load, decide, commit, say. The decisions are in `rules`, the SQL in `store`."""
