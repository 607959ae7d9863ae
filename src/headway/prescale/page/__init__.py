"""Pages of pre-scaling, each one HTML file that needs nothing beside it."""

from headway.prescale.page.of_backtest import render_backtest
from headway.prescale.page.of_tick import MODES, busy, render

__all__ = ["MODES", "busy", "render", "render_backtest"]
