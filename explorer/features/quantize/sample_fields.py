"""Samples of a dialog: what is typed for those that ranges are chosen on, and the seed of random ones."""

from __future__ import annotations

import os
from typing import Any

from explorer.base.errors import Misuse

DRAWS = 4
"""Random inputs, where nothing is typed."""
HINT = f"{DRAWS} random inputs; another number, an .npz, a folder"


def samples_text(calibrate: str, draws: int) -> str:
    """What stands in the field; '' for the usual."""
    return calibrate or (str(draws) if draws != DRAWS else "")


def samples_of(typed: str, seed: str) -> dict[str, Any]:
    """Fields `calibrate`, `draws` and `seed` of a request.

    Raises:
        Misuse: The seed is no number.
    """
    typed, seed = typed.strip(), seed.strip()
    if seed and not seed.isdecimal():
        raise Misuse(f"'{seed}' is not a whole number", where="seed", hint="write 0 or more")
    found: dict[str, Any] = {"calibrate": "", "draws": DRAWS, "seed": int(seed or 0)}
    if not typed or typed.isdecimal():
        return {**found, "draws": max(1, int(typed or DRAWS))}
    return {**found, "calibrate": os.path.expanduser(typed)}
