"""The node: built once, started in a private set of namespaces, gone without a trace."""
