"""What the preemptor does with its batches and with what operators ask of it."""
