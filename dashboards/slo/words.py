"""How latencies are written."""


def ms_told(value: float) -> str:
    """`182 ms`, `4.2 ms`, `1.25 s`."""
    if value >= 1000:
        seconds = f"{value / 1000:,.2f}"
        return f"{seconds.rstrip('0').rstrip('.')} s"
    return f"{value:.0f} ms" if value >= 10 or value == int(value) else f"{value:.1f} ms"
