"""What the ledger decides: pure functions of values, with `now` as an argument. Never a loop, a driver, a clock or a logger."""
