"""What admission decides: pure functions over the books. No loop, driver, clock, chance or wire form."""
