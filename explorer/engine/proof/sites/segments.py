"""Segmented run: a model piece by piece, its values are handed out as they are wanted, and held no longer.

A run that hands out every activation of a large network holds gigabytes, and one run for each portion of them
multiplies as often. Instead each portion is a model of its own, which begins where the ones before it ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from explorer.engine.graph.interpreter import Wiring, reads
from explorer.engine.graph.model import Model
from explorer.engine.proof.sites.parts import run_nodes
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose


def run_in_pieces(
    model: Model, feeds: Mapping[str, Array], wanted: Sequence[Sequence[str]], what: str
) -> Iterator[dict[str, Array]]:
    """Values of a model, portion by portion.

    Args:
        model: The model.
        feeds: Its inputs.
        wanted: Names of values, for each portion.
        what: How messages call the model.

    Yields:
        The values of each portion, by name.

    Raises:
        BadModel: onnxruntime cannot load or run it.
    """
    wiring = Wiring.of(model.graph)
    if any(name not in feeds and wiring.maker(name) is None for names in wanted for name in names):
        yield from _whole(model, feeds, wanted, what)  # what is stored is made by no node
        return
    pieces: list[list[int]] = []
    done: set[int] = set()
    for names in wanted:
        here = [at for at in wiring.positions(names) if at not in done]
        done.update(here)
        pieces.append(here)
    nodes = model.graph.nodes
    read = [{name for at in piece for name in reads(nodes[at])} for piece in pieces]
    last = {n: at for at, names in enumerate(wanted) for n in (*read[at], *names)}
    known = dict(feeds)
    for at, (piece, names) in enumerate(zip(pieces, wanted, strict=True)):
        made = [o for node in piece for o in nodes[node].outputs if last.get(o, -1) > at or o in names]
        given = {name: known[name] for name in read[at] if name in known}
        if made and not all(isinstance(value, np.ndarray) for value in given.values()):
            # sequences and the like cannot be handed to a session of a part
            yield from _whole(model, feeds, wanted[at:], what)
            return
        if made:
            known.update(run_nodes(model, [nodes[n] for n in piece], given, made, what))
        yield {name: known[name] for name in names}
        known = {name: value for name, value in known.items() if last.get(name, -1) > at}


def _whole(
    model: Model, feeds: Mapping[str, Array], wanted: Sequence[Sequence[str]], what: str
) -> Iterator[dict[str, Array]]:
    """A whole run for each portion."""
    for names in wanted:
        made = [name for name in dict.fromkeys(names) if name not in feeds]
        values = RuntimeSession(expose(model, made), what=what, optimise=False).run(feeds) if made else {}
        yield {**{name: feeds[name] for name in names if name in feeds}, **values}
