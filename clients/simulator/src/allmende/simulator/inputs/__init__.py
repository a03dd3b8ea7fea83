"""Reading clusters, budgets and jobs from files."""
