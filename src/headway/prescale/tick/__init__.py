"""One tick of one model: what is asked for is read, forecast and planned; the floor is set; what was seen is kept."""

from headway.prescale.tick.ports import Ports
from headway.prescale.tick.run import tick

__all__ = ["Ports", "tick"]
