"""Capacity before the peak, step by step: from what was measured to what must be up, and when. All of it is pure."""
