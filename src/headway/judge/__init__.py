"""Pure statistics: records in, a verdict out. No clock, no files, no network; the same records give the same bytes."""
