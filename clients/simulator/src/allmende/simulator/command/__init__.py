"""`allmende simulate`: options, inputs, the run, and what it leaves behind."""
