"""A cluster that Slurm runs: what its commands say, as values. See decision record 0046."""
