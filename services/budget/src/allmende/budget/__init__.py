"""The tree of budgets: shares, delegation and revisions."""
