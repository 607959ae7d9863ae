"""Numbers with their units, for people."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def format_bytes(size_bytes: float) -> str:
    """Say a size in the largest binary unit that keeps it at or above one, like `90.0 GiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """Say a duration as `7.4 s`, `3 min 05 s` or `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
