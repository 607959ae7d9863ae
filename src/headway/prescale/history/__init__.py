"""Traffic as it was measured: collected bin by bin from the metrics, kept as one Parquet file, or read from a CSV."""

from headway.prescale.history.collect import Collected, Load, collect, observe
from headway.prescale.history.csv_text import from_csv
from headway.prescale.history.table import COLUMNS, STEP_S, History, checked, from_parquet, rows, to_parquet

__all__ = [
    "COLUMNS",
    "STEP_S",
    "Collected",
    "History",
    "Load",
    "checked",
    "collect",
    "from_csv",
    "from_parquet",
    "observe",
    "rows",
    "to_parquet",
]
