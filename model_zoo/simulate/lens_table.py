"""Makes the magnification table of `broker_filter.inference.lens` from exact quadrature.

``python -m model_zoo.simulate.lens_table`` writes it anew (seconds). VBMicrolensing, at its best
setting, serves as the independent check in the tests; its own table is off by up to 1.7e-3 at the
limb, which is why the table is not made from it.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from broker_filter.inference.magnification import TABLE_PATH, table_axes

__all__ = ["build", "disc_excess"]

N_RHO, N_Q = 534, 2191
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(160)


def disc_excess(z: NDArray[np.float64], rho: float) -> NDArray[np.float64]:
    """A - 1 of a uniform disc of radius ``rho`` at u = z rho, exact to about 1e-8.

    Parameters
    ----------
    z : ndarray, shape (n,), float64
        Separation in source radii, z >= 0.
    rho : float
        Source radius in Einstein radii.

    Returns
    -------
    ndarray, shape (n,), float64

    Notes
    -----
    In polar coordinates about the lens the radial integral of (A - 1) r is
    G(r) = 2 r / (r + sqrt(r^2 + 4)) = 1 - g(r) with g(r) = 4 / (r + sqrt(r^2 + 4))^2, so that only
    the angle is left to integrate (Lee et al. 2009, ApJ 695, 200). The nodes crowd where the ray
    grazes the disc.
    """
    t = 0.5 * (_NODES + 1)
    phi, d_phi = 0.5 * np.pi * (1 - t**3), 0.75 * np.pi * t**2 * _WEIGHTS
    z = np.asarray(z, dtype=np.float64)[:, None]
    integrand = np.where(z < 1, _inside(z, rho, phi), _outside(z, rho, phi))
    result: NDArray[np.float64] = 2 * (integrand * d_phi).sum(axis=1) / (np.pi * rho**2)
    return result


def _g(r: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 4 / (r + np.sqrt(r * r + 4)) ** 2
    return result


def _inside(z: NDArray[np.float64], rho: float, phi: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rays at phi and pi - phi from a lens inside the disc: each leaves it once."""
    half_chord = np.sqrt(np.maximum(1 - (z * np.sin(phi)) ** 2, 0))
    along = z * np.cos(phi)
    return 2 - _g(rho * (half_chord + along)) - _g(rho * (half_chord - along))


def _outside(z: NDArray[np.float64], rho: float, phi: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rays that enter the disc and leave it; sin(theta) = sin(phi) / z."""
    half_chord = np.cos(phi)
    middle = np.sqrt(np.maximum((z - 1) * (z + 1), 0) + half_chord**2)
    near, far = rho * np.maximum(middle - half_chord, 0), rho * (middle + half_chord)
    chord: NDArray[np.float64] = (_g(near) - _g(far)) * half_chord / middle
    return chord


def build() -> NDArray[np.float32]:
    """The table, shape (N_RHO, N_Q), float32: ln(A - 1)."""
    rho, q = table_axes(N_RHO, N_Q)
    z = 1 + np.sign(q) * q**2
    return np.stack([np.log(disc_excess(z, r)) for r in rho]).astype(np.float32)


if __name__ == "__main__":
    np.save(TABLE_PATH, build(), allow_pickle=False)
    sys.stdout.write(f"{TABLE_PATH.name}: {TABLE_PATH.stat().st_size / 1e6:.1f} MB\n")
