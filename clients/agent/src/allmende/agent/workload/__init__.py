"""A workload for a synthetic cluster: a lab of teams and users that submits in a closed loop, or the jobs of a public trace."""
