"""`allmende simulate`: from words on the command line to a run and its reports."""
