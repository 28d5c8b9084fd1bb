"""Where the coefficients of horn/_kernels/functions.h come from; needs mpmath, which no test does.

    python -m tests.kernels.fit_functions

Each polynomial goes through its function at the Chebyshev nodes of an interval, computed with 60
digits: within a small factor of the best there is (J. P. Boyd, "Chebyshev and Fourier Spectral
Methods", 2001). Prints the coefficients, highest power first, and the polynomial's largest
relative error before they are rounded.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 60
M = mp.mpf
Function = Callable[[mp.mpf], mp.mpf]
K = M(3)  # of erfc: t = (x - K) / (x + K)


def through_nodes(f: Function, low: mp.mpf, high: mp.mpf, n: int) -> list[mp.mpf]:
    """Coefficients, lowest power first, of the polynomial of n terms (Newton's form, spread)."""
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = [middle + half * mp.cos(mp.pi * (2 * k + 1) / (2 * n)) for k in range(n)]
    parts = [f(x) for x in nodes]
    for j in range(1, n):
        for i in range(n - 1, j - 1, -1):
            parts[i] = (parts[i] - parts[i - 1]) / (nodes[i] - nodes[i - j])
    found = [M(0)]
    for part, node in zip(reversed(parts), reversed(nodes), strict=True):
        found = [
            (found[k - 1] if k else 0) - (found[k] * node if k < len(found) else 0)
            for k in range(len(found) + 1)
        ]
        found[0] += part
    return found[:n]


def of_root(f: Callable[[mp.mpf], mp.mpf], at_0: mp.mpf) -> Function:
    """f of the root of its argument, and its limit at 0."""
    return lambda z: at_0 if z == 0 else f(mp.sqrt(z))


def erfc_part(t: mp.mpf) -> mp.mpf:
    x = K * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x) * (1 + 2 * x)


def place(x: mp.mpf) -> mp.mpf:
    return (x - K) / (x + K)


SINE = of_root(lambda s: (mp.sin(s) / s - 1) / s**2, -M(1) / 6)
COSINE = of_root(lambda s: (mp.cos(s) - 1 + s * s / 2) / s**4, M(1) / 24)
LOG = of_root(lambda s: (mp.log((1 + s) / (1 - s)) / s - 2) / s**2, M(2) / 3)
FINE = of_root(lambda s: ((mp.log((1 + s) / (1 - s)) / s - 2) / s**2 - M(2) / 3) / s**2, M(2) / 5)
ATAN = of_root(lambda s: (mp.atan(s) / s - 1) / s**2, -M(1) / 3)
ERF = of_root(lambda s: mp.erf(s) / s, 2 / mp.sqrt(mp.pi))


def exponential(r: mp.mpf) -> mp.mpf:
    return M(1) / 2 if r == 0 else (mp.exp(r) - 1 - r) / r**2


QUARTER = (mp.pi / 4) ** 2 * M("1.0001")
LN2 = mp.log(2) / 2 * M("1.0001")
ROOT2 = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * M("1.001")
FITS = {  # function, interval, terms, whether in float
    "SIN_F64": (SINE, M(0), QUARTER, 6, False),
    "COS_F64": (COSINE, M(0), QUARTER, 6, False),
    "SIN_F32": (SINE, M(0), QUARTER, 4, True),
    "COS_F32": (COSINE, M(0), QUARTER, 3, True),
    "EXP_F64": (exponential, -LN2, LN2, 10, False),
    "EXP_POW": (exponential, -LN2, LN2, 6, False),
    "EXP_SHORT_F32": (exponential, -LN2 / 8, LN2 / 8, 2, True),
    "LOG_F64": (LOG, M(0), ROOT2, 7, False),
    "LOG_POW": (LOG, M(0), ROOT2, 4, False),
    "LOG_FINE": (FINE, M(0), ROOT2, 7, False),
    "ATAN_F64": (ATAN, M(0), M(1), 20, False),
    "ATAN_F32": (ATAN, M(0), M(1), 9, True),
    "ERF_F64": (ERF, M(0), M(1), 13, False),
    "ERF_F32": (ERF, M(0), M(1), 8, True),
    "ERFC_F64": (erfc_part, place(M("0.45")), place(M(28)), 23, False),
    "ERFC_SHORT": (erfc_part, place(M("0.45")), place(M(11)), 11, False),
    "ERFC_F32": (erfc_part, place(M("0.45")), place(M(11)), 11, True),
}


def main() -> None:
    for name, (f, low, high, n, is_float) in FITS.items():
        found = through_nodes(f, low, high, n)
        points = [low + (high - low) * k / 500 for k in range(501)]
        error = max(abs(mp.polyval(found[::-1], x) / f(x) - 1) for x in points if x)
        print(f"{name}: {n} terms, error {mp.nstr(error, 3)}")
        for c in reversed(found):
            print("   ", f"{np.float32(float(c))!s}f" if is_float else repr(float(c)))


if __name__ == "__main__":
    main()
