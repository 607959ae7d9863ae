"""Programs that stand in for pod programs in tests of the Jobs adapters."""
