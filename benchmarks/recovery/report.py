"""How figures are shown, and which aims are met."""
import statistics

_aims = []


def spread(values, factor=1.0):
    values = sorted(v * factor for v in values)
    return f"{statistics.median(values):6.2f} ({values[0]:.2f}-{values[-1]:.2f})"


def quantile(values, share):
    """The least value that so large a share of them does not exceed."""
    values = sorted(values)
    return values[min(len(values) - 1, max(0, -int(-share * len(values) // 1) - 1))]


def aim(what, figure, limit, unit="s"):
    """Notes whether `figure` is within `limit`; the same aim may be noted for several settings."""
    _aims.append((what, figure, limit, unit))
    return f"aim {limit:g} {unit}, {'met' if figure <= limit else 'NOT MET'}"


def print_aims():
    if _aims:
        print("\naims")
    for what, figure, limit, unit in _aims:
        print(f"  {'met    ' if figure <= limit else 'NOT MET'} {what}: {figure:.3g} {unit}, aim {limit:g} {unit}")
