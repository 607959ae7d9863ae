"""What touches the world: one module or package per port. Adapters do not know each other."""
