"""Who runs where: the services' own rules, and two older ways to compare with."""
