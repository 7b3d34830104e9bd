"""Verbs that look at a model, or at several side by side: what it is made of, and what that costs."""

from __future__ import annotations

from explorer.base.errors import Misuse, UnknownShape
from explorer.cli.output.answer import DIFFERENT, DONE, Answer, asked, document, pages, session_options, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from explorer.cli.arguments.parser import Given
    from explorer.cli.output.progress import ProgressLine
    from explorer.facts import Info
    from explorer.facts.roofline import Machine
    from explorer.facts.values import Activations
    from explorer.session import Session

__all__ = ["RUN"]


def _info(given: Given, line: ProgressLine) -> Answer:
    return asked(given, line, lambda session, info: (info,), "info", "model")


def _layers(given: Given, line: ProgressLine) -> Answer:
    if given.style == "torchinfo" or given.compare:
        return _torchinfo(given, line)
    return asked(given, line, lambda session, info: (session.analysis(),), "layers", "model", "layers")


def _torchinfo(given: Given, line: ProgressLine) -> Answer:
    """Torchinfo's own table; with `--compare` where it is wrong, alone where our own tree was asked for."""
    if given.csv and not given.compare:
        raise Misuse("torchinfo's table is text", where="--csv", hint="leave --style out, or add --compare")
    return asked(
        given,
        line,
        lambda session, info: (
            info,
            session.torchinfo(),
            session.analysis() if given.style == "tree" else None,
            given.compare,
        ),
        "torchinfo",
        "comparison",
        "differences",
    )


def _ops(given: Given, line: ProgressLine) -> Answer:
    return asked(given, line, lambda session, info: (info, session.ops()), "ops", "model", "ops")


def _memory(given: Given, line: ProgressLine) -> Answer:
    return asked(given, line, lambda session, info: (info, session.memory()), "memory", "costs", "steps")


def _roofline(given: Given, line: ProgressLine) -> Answer:
    machine = _machine(given)
    return asked(
        given, line, lambda session, info: (info, session.roofline(machine)), "roofline", "costs", "layers"
    )


def _machine(given: Given) -> Machine:
    from explorer.settings import machines

    return machines.find(given.machine, given.peak_macs, given.bandwidth)


def _training(given: Given, line: ProgressLine) -> Answer:
    return asked(
        given,
        line,
        lambda session, info: (info, session.training(batch=given.batch, optimizer=given.optimizer)),
        "training",
        "costs",
        "layers",
    )


def _weights(given: Given, line: ProgressLine) -> Answer:
    return asked(
        given,
        line,
        lambda session, info: (info, session.weights(given.layer, bins=given.bins, on_progress=line)),
        "weights",
        "values",
        "tensors",
        first=_stored,
    )


def _stored(session: Session, line: ProgressLine) -> Info:
    """Totals of a model; of one that does not say what it takes only what it stores, which needs no input."""
    try:
        return session.open(on_progress=line)
    except UnknownShape:
        return session.stored()


def _activations(given: Given, line: ProgressLine) -> Answer:
    def first(session: Session, line: ProgressLine) -> Info:
        # a module does not say what it takes; a file with its inputs does
        return session.open(on_progress=line) if given.input is None else _stored(session, line)

    def ask(session: Session, info: Info) -> tuple[Info, Activations]:
        found = session.activations(
            given.layer,
            input=given.input,
            seed=given.seed,
            bins=given.bins,
            output=given.output,
            overwrite=given.force,
            on_progress=line,
        )
        taken = {tensor.name: (tensor.dtype, tensor.shape) for tensor in info.model.inputs}
        if given.past is None and any(taken.get(name) != kind for name, kind in found.sizes.items()):
            info = session.info_at(found.sizes, on_progress=line)
        return info, found

    return asked(given, line, ask, "activations", "values", "tensors", first=first)


def _compare(given: Given, line: ProgressLine) -> Answer:
    from explorer.session import compare_files

    fact = compare_files(*given.models, on_progress=line, **session_options(given))
    return Answer(
        DONE if fact.agree else DIFFERENT,
        lambda: document().compare(fact, tool()),
        lambda: pages("comparison").compare(fact),
        "models",
    )


_DRAWN: dict[str, Callable[[Given, Session, Info], Any]] = {
    "memory": lambda given, session, info: session.memory(),
    "roofline": lambda given, session, info: session.roofline(_machine(given)),
    "operators": lambda given, session, info: session.ops(),
}
"""What a picture is made of."""


def _plot(given: Given, line: ProgressLine) -> Answer:
    from explorer.report import plots

    plots.check(given.output)
    return _written(
        given, line, _DRAWN[given.what], lambda info, fact, path: plots.write(given.what, info, fact, path)
    )


def _report(given: Given, line: ProgressLine) -> Answer:
    from explorer.report.html import page

    page.check(given.output)
    machine = _machine(given) if given.machine or given.peak_macs or given.bandwidth else None

    def ask(given: Given, session: Session, info: Info) -> Any:
        return page.gather(session, machine=machine, batch=given.batch, optimizer=given.optimizer)

    return _written(given, line, ask, lambda info, fact, path: page.write(fact, path, tool()))


def _written(
    given: Given,
    line: ProgressLine,
    ask: Callable[[Given, Session, Info], Any],
    write: Callable[[Info, Any, str], None],
) -> Answer:
    """A file about one model; the target is refused before any work is done."""
    from explorer.host.output_files import check_target, replacing
    from explorer.session import Session

    source, output = given.models[0], given.output
    check_target(output, overwrite=given.force, models=[source], weights=())
    with Session(source, **session_options(given)) as session:
        info = session.open(on_progress=line)
        fact = ask(given, session, info)
        with replacing(output, overwrite=given.force) as temporary:
            write(info, fact, temporary)
    return Answer(
        DONE,
        lambda: document().written(info, output, tool()),
        lambda: pages("model").written(output),
    )


RUN: dict[str, Callable[[Given, ProgressLine], Answer]] = {
    "info": _info,
    "layers": _layers,
    "ops": _ops,
    "memory": _memory,
    "roofline": _roofline,
    "training": _training,
    "weights": _weights,
    "activations": _activations,
    "compare": _compare,
    "plot": _plot,
    "report": _report,
}
