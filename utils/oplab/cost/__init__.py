"""FLOPs and bytes of every ATen operator, forward and backward.

Conventions: an FMA is two FLOPs; ``matrix_flops`` is what matrix units can do, ``vector_flops`` the
rest, one per arithmetic operation of the textbook definition (the table is docs/costs.md); bytes are
the compulsory traffic of one cold call. ``saved_by`` tells what a forward keeps for its backward.
"""

from oplab.cost.costs import Costs, OperatorCost
from oplab.cost.counter import CostCounter, count
from oplab.cost.registry import Flops, formula
from oplab.cost.saved import Saved, saved_by

__all__ = ["CostCounter", "Costs", "Flops", "OperatorCost", "Saved", "count", "formula", "saved_by"]
