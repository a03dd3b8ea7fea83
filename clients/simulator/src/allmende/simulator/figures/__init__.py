"""What a history says: the figures of contract §10."""

from allmende.simulator.figures.compare import Comparison, compare, side_by_side
from allmende.simulator.figures.compute import cost, measure
from allmende.simulator.figures.model import Cost, Figures

__all__ = ["Comparison", "Cost", "Figures", "compare", "cost", "measure", "side_by_side"]
