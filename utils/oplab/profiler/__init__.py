"""Cost and time of each operator of a training step, joined; which lever to pull."""

from oplab.profiler.levers import Advice
from oplab.profiler.profile import Profile, ProfiledOperator
from oplab.profiler.run import profile

__all__ = ["Advice", "Profile", "ProfiledOperator", "profile"]
