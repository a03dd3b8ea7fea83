"""The commands, by what they are about. Each asks one service and prints its answer; none decides anything."""
