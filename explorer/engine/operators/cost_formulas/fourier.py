"""Fourier transform: its cost by definition, an upper bound for every faster algorithm."""

from __future__ import annotations

from explorer.engine.operators.cost_formulas.cost import Cost, bounded, counted
from explorer.facts import Dim, Shape


def fourier(
    transforms: Shape, samples: Dim, frequencies: Dim, *, complex_in: bool, complex_out: bool = True
) -> Cost:
    """Discrete Fourier transform, by its definition: every frequency is a sum over every sample.

    MACs = transforms x frequencies x samples x real products (2 real by complex, 4 complex by complex).
    That is what a convolution with the same basis counts. A fast transform needs fewer, how many depends
    on the algorithm: hence a bound.

    Args:
        transforms: Signals, one transform each.
        samples: Of one signal, those that pad it included.
        frequencies: Computed of each: all of them, or one side.
        complex_in: Whether a sample has an imaginary part.
        complex_out: Whether a result has one.
    """
    parts = (1 + complex_in) * (1 + complex_out)
    cost = counted(
        [
            ("transforms", transforms or (1,)),
            ("frequencies", (frequencies,)),
            ("samples", (samples,)),
            ("real products", (parts,)),
        ]
    )
    return bounded(cost, "counted by its definition; a fast Fourier transform takes fewer")
