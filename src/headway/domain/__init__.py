"""The words of headway as frozen values: no IO, no clock, no clients."""
