"""The embedded backend: everything on one machine, on loopback, under one process manager."""
