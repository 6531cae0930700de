"""FLOPs and bytes of every ATen operator, forward and backward.

Conventions: an FMA is two FLOPs; ``matrix_flops`` is what matrix units can do, ``vector_flops`` the
rest, one per arithmetic operation of the textbook definition (the table is docs/costs.md); bytes are
the compulsory traffic of one cold call.
"""

from oplab.cost.costs import Costs, OperatorCost
from oplab.cost.counter import CostCounter, count
from oplab.cost.registry import Flops, formula

__all__ = ["CostCounter", "Costs", "Flops", "OperatorCost", "count", "formula"]
