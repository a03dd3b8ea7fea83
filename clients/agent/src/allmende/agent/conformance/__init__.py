"""The conformance suite: plays the services to an agent, over a real bus, and judges what the bus hears of it."""
