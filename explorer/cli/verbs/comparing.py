"""Verbs that hold a model against another one: converted, as accurate, departing, changed."""

from __future__ import annotations

from explorer.base.verdicts import EXIT_CODES
from explorer.cli.output.answer import DIFFERENT, DONE, Answer, document, pages, session_options, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from explorer.cli.arguments.parser import Given
    from explorer.cli.output.progress import ProgressLine

__all__ = ["RUN"]


def _convert(given: Given, line: ProgressLine) -> Answer:
    from explorer.session import Session

    with Session(given.models[0], **session_options(given)) as session:
        fact = session.convert(
            given.output,
            exporter=given.exporter,
            opset=given.opset,
            input_names=given.input_names or (),
            output_names=given.output_names or (),
            dynamic=given.dynamic,
            method=given.method,
            overwrite=given.force,
            verify=not given.no_verify,
            draws=given.draws or 3,
            seed=given.seed,
            on_progress=line,
        )
    return Answer(
        EXIT_CODES[fact.verdict_kind],
        lambda: document().conversion(fact, tool()),
        lambda: pages("conversion").conversion(fact),
    )


def _verify(given: Given, line: ProgressLine) -> Answer:
    from explorer.facts.verification import Tolerance
    from explorer.session import verify_files
    from explorer.settings.parse import opening_words

    a, b = given.models
    asked = (given.atol, given.rtol, given.snr)
    fact = verify_files(
        a,
        b,
        draws=given.draws or 1,
        seed=given.seed,
        input=given.input,
        tolerance=Tolerance(*asked) if any(limit is not None for limit in asked) else None,
        on_progress=line,
        **session_options(given),
    )
    return Answer(
        EXIT_CODES[fact.verdict_kind],
        lambda: document().verification(fact, tool()),
        lambda: pages("evidence").verification(fact, opening_words(session_options(given))),
    )


def _blame(given: Given, line: ProgressLine) -> Answer:
    from explorer.host.output_files import check_target, replacing
    from explorer.session import blame_files

    a, b = given.models
    if given.plot:
        from explorer.report import plots

        plots.check(given.plot)
        check_target(given.plot, overwrite=given.force, models=[a, b], weights=())
    asked = {"draws": given.draws or 3, "seed": given.seed, "input": given.input}
    fact = blame_files(a, b, **asked, on_progress=line, **session_options(given))
    if given.plot:
        with replacing(given.plot, overwrite=given.force) as temporary:
            plots.write("blame", None, fact, temporary)
    return Answer(
        DONE if fact.same else DIFFERENT,
        lambda: document().blame(fact, tool()),
        lambda: pages("blame").blame(fact, given.limit, given.plot or ""),
        "probes",
    )


def _diff(given: Given, line: ProgressLine) -> Answer:
    from explorer.session import diff_files

    a, b = given.models
    fact = diff_files(a, b, on_progress=line, **session_options(given))
    code = DONE if fact.equal else DIFFERENT
    return Answer(code, lambda: document().diff(fact, tool()), lambda: pages("changes").diff(fact))


RUN: dict[str, Callable[[Given, ProgressLine], Answer]] = {
    "convert": _convert,
    "verify": _verify,
    "blame": _blame,
    "diff": _diff,
}
