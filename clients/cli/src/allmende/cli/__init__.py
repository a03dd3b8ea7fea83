"""The command line: `allmende`."""
