"""The SDK for cluster agents, and the agents built with it."""
