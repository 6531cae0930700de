"""Experiments on the screen."""

from oplab.widgets import explore
from oplab.widgets.predict import predict

__all__ = ["explore", "predict"]
