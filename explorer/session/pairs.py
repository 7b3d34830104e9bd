"""Two models or more side by side: their totals, what changed, whether they compute the same.

Each is opened as a session opens it, so these functions know `explorer.session.states.States` from inside.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import Diff, Verification
from explorer.session.states import Cancel, Dims, OnProgress, States

if TYPE_CHECKING:
    from explorer.facts.blame import Blame
    from explorer.facts.comparison import Comparison
    from explorer.facts.verification import Tolerance

__all__ = ["blame_files", "compare_files", "diff_files", "verify_files"]


@contextlib.contextmanager
def _pair(
    a: str | os.PathLike[str], b: str | os.PathLike[str], options: Mapping[str, Any]
) -> Iterator[tuple[States, States]]:
    """Two sessions with the same options; a dimension need only exist in one of the two models.

    Of several sizes of a dimension they have the first.
    """
    from explorer.engine.models.opened import OpenOptions, check_names

    dims: Dims = options.get("dims") or {}
    options = {**options, "dims": {n: s if isinstance(s, int) else s[0] for n, s in dims.items()}}
    with States(a, **options) as first, States(b, **options) as second:
        first._strict = second._strict = False
        opened = [first._open(None), second._open(None)]
        check_names(opened, OpenOptions(**first._options))
        yield first, second


def verify_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    draws: int = 1,
    seed: int = 0,
    input: str | None = None,
    tolerance: Tolerance | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Verification:
    """Evidence that the models `a` and `b` compute the same, or differ by no more than `tolerance`.

    `options` as for `explorer.session.Session`; in `dims` a name may have several sizes. `input` is an .npy
    or .npz file with the inputs, in place of random ones.
    """
    with _pair(a, b, options) as (first, second):
        evidence = first._verify(
            first._model(0, on_progress),
            second._model(0, on_progress),
            None,
            draws,
            seed,
            on_progress,
            cancel,
            options.get("dims"),
            input,
            tolerance,
        )
        return replace(evidence, before=first.source, after=second.source)


def blame_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    draws: int = 3,
    seed: int = 0,
    input: str | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Blame:
    """Where the model `b` departs from `a`, layer by layer.

    `options` as for `explorer.session.Session`; in `dims` a name may have several sizes. `input` is an .npy
    or .npz file with the inputs, in place of random ones.
    """
    with _pair(a, b, options) as (first, second):
        models = first._model(0, on_progress), second._model(0, on_progress)
        fact = first._blame(*models, draws, seed, on_progress, cancel, options.get("dims"), input)
        return replace(fact, before=first.source, after=second.source)


def diff_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Diff:
    """What changed from the model `a` to the model `b`; `options` as for `explorer.session.Session`."""
    from explorer.engine.diff import diff

    with _pair(a, b, options) as (first, second):
        changes = diff(
            first._model(0, on_progress),
            second._model(0, on_progress),
            before_analysis=first._graph_analysis(0, on_progress, cancel),
            after_analysis=second._graph_analysis(0, on_progress, cancel),
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=first.source, after=second.source)


def compare_files(
    *sources: str | os.PathLike[str],
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Comparison:
    """Totals of two or more models side by side, and their differences from the first.

    Args:
        sources: As for `explorer.session.Session`.
        on_progress: Told the phase of each model.
        cancel: Asked now and then; True stops.
        options: As for `explorer.session.Session`; a dimension or input need only exist in one of the models.

    Raises:
        Misuse: There is only one model, or no model has a dimension or input that was named.
    """
    from explorer.engine.costs.compare.models import compare
    from explorer.engine.models.opened import OpenOptions, check_names

    if len(sources) < 2:
        raise Misuse("there is nothing to compare with", hint="name two models or more")
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(States(source, **options)) for source in sources]
        for session in sessions:
            session._strict = False
        opened = [session._open(on_progress) for session in sessions]
        check_names(opened, OpenOptions(**sessions[0]._options))
        examined = [session._examine(0, on_progress, cancel) for session in sessions]
        return compare(
            [one.analysis for one in examined],
            [one.schedule for one in examined],
            [_zeros(one) for one in opened],
        )


def _zeros(opened: Any) -> Callable[[str], bool]:
    """Whether a parameter of a module is all zeros; of other formats nothing is said."""
    loaded: Any = getattr(opened, "loaded", None)
    known: dict[str, Any] = {}

    def zeros(name: str) -> bool:
        if not known and hasattr(loaded, "materialise"):
            known.update(loaded.materialise().named_parameters(remove_duplicate=False))
        return name in known and not bool(known[name].any())

    return zeros
