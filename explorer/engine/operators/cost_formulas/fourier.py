"""Cost of a Fourier transform by its definition, which is an upper bound for fast algorithms."""

from __future__ import annotations

from explorer.engine.operators.cost_formulas.cost import Cost, bounded_work, counted
from explorer.facts import Dim, Shape


def fourier(
    transforms: Shape, samples: Dim, frequencies: Dim, *, complex_in: bool, complex_out: bool = True
) -> Cost:
    """Returns the cost of a discrete Fourier transform by its definition: each frequency sums all samples.

    MACs = transforms x frequencies x samples x real products. A real sample times a complex factor is 2 real
    products, a complex sample 4. The cost is a bound, because a fast transform takes fewer MACs, depending on
    its algorithm.

    Args:
        transforms: Shape of the batch of signals, with one transform per signal.
        samples: Number of samples in a signal, including padding.
        frequencies: Number of computed frequencies per signal: all of them, or one side of the spectrum.
        complex_in: Whether a sample has an imaginary part.
        complex_out: Whether a result has an imaginary part.
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
    return bounded_work(cost, "counted by its definition; a fast Fourier transform takes fewer operations")
