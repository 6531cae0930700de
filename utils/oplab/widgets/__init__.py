"""Experiments on the screen."""

from oplab.widgets import explore
from oplab.widgets.diagrams import ladder, tile_diagram, traffic_diagram, waves
from oplab.widgets.dispatcher import dispatch_table
from oplab.widgets.predict import predict
from oplab.widgets.source import show_source

__all__ = ["dispatch_table", "explore", "ladder", "predict", "show_source", "tile_diagram", "traffic_diagram", "waves"]
