"""What each verb of the command line does: options in, an answer out.

Thin over `explorer.session`: what a verb computes is a fact of the session's; how it reads is made by
`explorer.report` when the answer is printed. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

from explorer.errors import BadModel, Cancelled, ExplorerError, Misuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from explorer.facts import Diff, Info, TileSpec
    from explorer.facts.roofline import Machine
    from explorer.facts.sweep import Sweep, SweepSpec
    from explorer.progress_line import ProgressLine
    from explorer.report.model import Block
    from explorer.session import Session
    from explorer.words import Given

__all__ = ["DIFFERENT", "DONE", "INSTANT", "RUN", "Answer", "session_options", "tile_spec", "tool"]

DONE, DIFFERENT = 0, 1


class Answer:
    """What a verb found: its exit code, and the answer as a JSON document or as text, made on demand.

    Args:
        code: The exit code.
        document: Makes the answer as a JSON document.
        page: Makes the answer as text.
        rows: The key of the document whose list `--csv` prints.
        warning: One line for standard error, beside an answer that stands.
        pieces: Makes the answer in the form that was asked for, a piece at a time; then there is neither
            `document` nor `page`.
    """

    __slots__ = ("code", "document", "page", "pieces", "rows", "warning")

    def __init__(
        self,
        code: int,
        document: Callable[[], dict[str, Any]] = dict,
        page: Callable[[], list[Block]] = list,
        rows: str = "",
        warning: str = "",
        pieces: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        self.code = code
        self.document = document
        self.page = page
        self.rows = rows
        self.warning = warning
        self.pieces = pieces


def session_options(given: Given) -> Mapping[str, Any]:
    """What `Session` is opened with."""
    return {
        "weights": given.weights,
        "dims": given.dim,
        "input_shapes": given.input_shape,
        "trust": given.trust,
        "rules": given.rules,
        "observe": given.observe,
        "past": given.past,
    }


_ASKED = {"tile": "tile", "site": "sites", "edges": "edges", "form": "form", "grouped": "grouped"}
"""Options of a tiling, and the fields of `TileSpec` that they are."""


def tile_spec(given: Given) -> TileSpec:
    """The tiling that is asked for: by default, in the file of `--config`, by what was typed."""
    from explorer import tiling_file

    typed = {field: getattr(given, key) for key, field in _ASKED.items() if key in given.typed}
    return tiling_file.spec_of(given.config, typed)


# the verbs


def _asked(
    given: Given,
    line: ProgressLine,
    ask: Callable[[Session, Info], tuple[Any, ...]],
    name: str,
    page: str,
    rows: str = "",
) -> Answer:
    """An answer about one model.

    Args:
        given: What was typed.
        line: Told where the job stands.
        ask: Gets the facts.
        name: Of the function that makes them a document, and of the one in `page` that makes them text.
        page: Module of `explorer.report`.
        rows: See `Answer`.
    """
    from explorer.session import Session

    with Session(given.models[0], **session_options(given)) as session:
        info = session.open(on_progress=line)
        facts = ask(session, info)
        digest = session.sha256() if given.json else None
    return Answer(
        DONE,
        lambda: getattr(_document(), name)(*facts, tool(), digest),
        lambda: getattr(_pages(page), name)(*facts),
        rows,
    )


def _info(given: Given, line: ProgressLine) -> Answer:
    return _asked(given, line, lambda session, info: (info,), "info", "model")


def _layers(given: Given, line: ProgressLine) -> Answer:
    if given.style == "torchinfo" or given.compare:
        return _torchinfo(given, line)
    return _asked(given, line, lambda session, info: (session.analysis(),), "layers", "model", "layers")


def _torchinfo(given: Given, line: ProgressLine) -> Answer:
    """Torchinfo's own table; with `--compare` where it is wrong, alone where our own tree was asked for."""
    if given.csv and not given.compare:
        raise Misuse("torchinfo's table is text", where="--csv", hint="leave --style out, or add --compare")
    return _asked(
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
    return _asked(given, line, lambda session, info: (info, session.ops()), "ops", "model", "ops")


def _memory(given: Given, line: ProgressLine) -> Answer:
    return _asked(given, line, lambda session, info: (info, session.memory()), "memory", "costs", "steps")


def _roofline(given: Given, line: ProgressLine) -> Answer:
    machine = _machine(given)
    return _asked(
        given, line, lambda session, info: (info, session.roofline(machine)), "roofline", "costs", "layers"
    )


def _machine(given: Given) -> Machine:
    from explorer import machines

    return machines.find(given.machine, given.peak_macs, given.bandwidth)


def _plan(given: Given, line: ProgressLine) -> Answer:
    from explorer import machines

    spec = tile_spec(given)
    hardware = None if given.profile is None else machines.hardware(given.profile)
    return _asked(
        given,
        line,
        lambda session, info: (
            info,
            session.cost(
                spec, hardware, order=given.order, formulas=given.formulas or None, on_progress=line
            ),
        ),
        "plan_cost",
        "planning",
        "sites",
    )


def _training(given: Given, line: ProgressLine) -> Answer:
    return _asked(
        given,
        line,
        lambda session, info: (info, session.training(batch=given.batch, optimizer=given.optimizer)),
        "training",
        "costs",
        "layers",
    )


def _weights(given: Given, line: ProgressLine) -> Answer:
    return _asked(
        given,
        line,
        lambda session, info: (info, session.weights(given.layer, bins=given.bins, on_progress=line)),
        "weights",
        "values",
        "tensors",
    )


def _activations(given: Given, line: ProgressLine) -> Answer:
    return _asked(
        given,
        line,
        lambda session, info: (
            info,
            session.activations(
                given.layer,
                input=given.input,
                seed=given.seed,
                bins=given.bins,
                output=given.output,
                overwrite=given.force,
                on_progress=line,
            ),
        ),
        "activations",
        "values",
        "tensors",
    )


def _compare(given: Given, line: ProgressLine) -> Answer:
    from explorer.session import compare_files

    fact = compare_files(*given.models, on_progress=line, **session_options(given))
    return Answer(
        DONE if fact.agree else DIFFERENT,
        lambda: _document().compare(fact, tool()),
        lambda: _pages("comparison").compare(fact),
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
    from explorer.report import page

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
    from explorer.session import Session
    from explorer.targets import check_target, replacing

    source, output = given.models[0], given.output
    check_target(output, overwrite=given.force, models=[source], weights=())
    with Session(source, **session_options(given)) as session:
        info = session.open(on_progress=line)
        fact = ask(given, session, info)
        with replacing(output) as temporary:
            write(info, fact, temporary)
    return Answer(
        DONE,
        lambda: _document().written(info, output, tool()),
        lambda: _pages("model").written(output),
    )


def _tile(given: Given, line: ProgressLine) -> Answer:
    from explorer.arguments import opening_words
    from explorer.facts import TileResult
    from explorer.session import Session

    if given.to == "torch":
        return _tile_module(given, line)
    if given.dynamic:
        raise Misuse("says nothing of an ONNX file's own axes", where="--dynamic", hint="add --to torch")
    spec = tile_spec(given)
    source, change, warning = given.models[0], None, ""
    with Session(source, **session_options(given)) as session:
        model = session.open(on_progress=line).model
        digest = session.sha256() if given.json else None
        idle = _idle_rules(session, spec)
        if given.output is None:
            result = TileResult(session.plan(spec, on_progress=line), "", None, 0.0, session.command(spec))
        else:
            try:
                result = session.tile(
                    spec,
                    output=given.output,
                    overwrite=given.force,
                    verify=not given.no_verify,
                    draws=given.draws,
                    seed=given.seed,
                    on_progress=line,
                )
            except BadModel as error:
                # the runtime lacks an operator: then the model cannot be run, but it can be tiled
                if given.no_verify or error.hint:
                    raise
                raise BadModel(error.what, where=error.where, hint=_UNPROVED) from None
            if result.output and not given.json:
                change, warning = _change(session, result.output, line)
    differs = result.verification is not None and not result.verification.passed
    return Answer(
        DIFFERENT if differs else DONE,
        lambda: _document().tile(result, model, tool(), digest),
        lambda: _pages("tiling").tile(result, source, change, opening_words(session_options(given))),
        warning="; ".join(filter(None, (idle, warning))),
    )


def _idle_rules(session: Session, spec: TileSpec) -> str:
    """Which rules mean no product here: right for a file that serves several models, or a mistyped name."""
    unused = session.settings(spec).unused if spec.rules else ()
    if not unused:
        return ""
    first, more = unused[0], f", and {len(unused) - 1:,} more" if len(unused) > 1 else ""
    near = f"; did you mean '{first.near}'?" if first.near else ""
    return f"{first.origin}{more} means no product here: {first.says}{near}"


def _tile_module(given: Given, line: ProgressLine) -> Answer:
    """`--to torch`: the layers of an nn.Module are tiled, not the nodes of a graph."""
    from explorer.arguments import opening_words
    from explorer.facts import TileResult
    from explorer.session import Session

    spec, source = tile_spec(given), given.models[0]
    with Session(source, **session_options(given)) as session:
        model = session.open(on_progress=line).model
        if given.output is None:
            plan = session.plan_module(spec, on_progress=line)
            result = TileResult(plan, "", None, 0.0, session.module_command(spec, None, given.dynamic))
        else:
            _, result = session.tile_module(
                spec,
                output=given.output,
                overwrite=given.force,
                dynamic=given.dynamic,
                verify=not given.no_verify,
                draws=given.draws,
                seed=given.seed,
                on_progress=line,
            )
    differs = result.verification is not None and not result.verification.passed
    return Answer(
        DIFFERENT if differs else DONE,
        lambda: _document().tile(result, model, tool(), None),
        lambda: _pages("tiling").tile(result, source, None, opening_words(session_options(given))),
    )


_UNPROVED = "nothing was written; --no-verify tiles it without the proof"


def _change(session: Session, written: str, line: ProgressLine) -> tuple[Diff | None, str]:
    """What changed; from here on the file exists, so no failure may say that nothing was written."""
    try:
        return session.diff(on_progress=line), ""
    except (Cancelled, KeyboardInterrupt):
        raise Cancelled(f"stopped while comparing the graphs; {written} is written and complete") from None
    except ExplorerError as error:
        return None, f"what changed cannot be shown: {error}"


def _sweep(given: Given, line: ProgressLine) -> Answer:
    from explorer import machines
    from explorer.report import sweep as text
    from explorer.session import sweeping

    if len(given.models) == 1 and sweeping.is_results(given.models[0]):
        if given.scalesim is not None:
            raise Misuse("results hold no products", where="--scalesim", hint="name the model")
        fact = sweeping.results(given.models[0])
    else:
        if given.scalesim is not None:
            from explorer.targets import check_target

            check_target(given.scalesim, overwrite=given.force, models=given.models, weights=())
        fact = _swept(
            given,
            spec=_combined(given),
            hardware=None if given.profile is None else machines.hardware(given.profile),
            order=given.order,
            verify=given.verify,
            draws=given.draws,
            first_seed=given.seed,
            output=given.output,
            scheduler=given.scheduler,
            workers=given.workers,
            layers=given.scalesim is not None,
            on_progress=line,
            **session_options(given),
        )
    if given.sort is not None:
        fact = sweeping.sorted_by(fact, given.sort)
    if given.scalesim is not None:
        from explorer.targets import replacing

        with replacing(given.scalesim) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(text.scalesim(fact.layers))
    differs = any(row.verified is False for row in fact.rows)
    failed = sum(bool(row.error) for row in fact.rows)
    return Answer(
        DIFFERENT if differs else DONE,
        lambda: _document().sweep(fact, tool()),
        lambda: text.sweep(fact),
        "rows",
        warning=f"{failed:,} of {len(fact.rows):,} rows have no figures" if failed else "",
    )


def _swept(given: Given, **how: Any) -> Sweep:
    """A sweep; one that is stopped says what became of what was done."""
    from explorer.session.sweeping import sweep_files

    try:
        return sweep_files(*given.models, **how)
    except (Cancelled, KeyboardInterrupt):
        if given.output is None:
            raise Cancelled("stopped; nothing was kept", hint="with -o FILE it would be") from None
        said = f"stopped; what was done is kept in {given.output}"
        raise Cancelled(said, hint="the same command goes on from there") from None


def _combined(given: Given) -> SweepSpec:
    """What is combined: what was typed, on top of the file of `--config`."""
    from explorer import tiling_file
    from explorer.facts.sweep import SweepSpec, tiles_of

    tiles = tiles_of(given.tile, given.tile_m, given.tile_k, given.tile_n)
    typed = {"tile": tiles[0], "sites": given.site, "edges": given.edges[0], "form": given.form[0]}
    kept = {name: value for name, value in typed.items() if name == "tile" or name[:4] in given.typed}
    if "grouped" in given.typed:
        kept["grouped"] = given.grouped
    base = tiling_file.spec_of(given.config, kept)
    edges, forms = (
        values if name in given.typed else (getattr(base, name),)
        for name, values in (("edges", given.edges), ("form", given.form))
    )
    return SweepSpec(tiles, edges, forms, base=base)


def _settings(given: Given, line: ProgressLine) -> Answer:
    spec = tile_spec(given)
    return _asked(
        given,
        line,
        lambda session, info: (info, session.settings(spec, on_progress=line)),
        "settings",
        "settings",
        "sites",
    )


def _history(given: Given, line: ProgressLine) -> Answer:
    """What a kept session did; nothing of the model is opened but what the session made itself."""
    import contextlib
    import os

    from msgspec.structs import asdict

    from explorer import resuming, targets
    from explorer.session import Session, scripts

    output = given.output and os.path.abspath(given.output)
    model = given.models[0] if given.models else None
    kept, saved = resuming.find(model, os.environ, trust=True)
    folder = saved.cwd if os.path.isdir(saved.cwd) else os.curdir
    try:
        with (
            contextlib.chdir(folder),  # where the model was named from
            Session(saved.source, **asdict(saved.opening), workdir=kept.folder) as session,
        ):
            history = session.restore(saved.history) if saved.history is not None else session.history()
            if output is not None:
                text = session.script_text()
                targets.check_target(output, overwrite=given.force, models=[saved.source], weights=())
                with targets.replacing(output, overwrite=given.force) as temporary:
                    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
                        file.write(text)
                scripts.make_executable(output)
    finally:
        kept.release()
    return Answer(
        DONE,
        lambda: _document().history(history, saved.source, given.output, tool()),
        lambda: _pages("history").history(history, saved.source, given.output),
    )


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
            draws=given.draws,
            seed=given.seed,
            on_progress=line,
        )
    return Answer(
        DONE if fact.passed else DIFFERENT,
        lambda: _document().conversion(fact, tool()),
        lambda: _pages("conversion").conversion(fact),
    )


def _verify(given: Given, line: ProgressLine) -> Answer:
    from explorer.arguments import opening_words
    from explorer.session import verify_files

    a, b = given.models
    fact = verify_files(a, b, draws=given.draws, seed=given.seed, on_progress=line, **session_options(given))
    return Answer(
        DONE if fact.passed else DIFFERENT,
        lambda: _document().verification(fact, tool()),
        lambda: _pages("evidence").verification(fact, opening_words(session_options(given))),
    )


def _blame(given: Given, line: ProgressLine) -> Answer:
    from explorer.session import blame_files
    from explorer.targets import check_target, replacing

    a, b = given.models
    if given.plot:
        from explorer.report import plots

        plots.check(given.plot)
        check_target(given.plot, overwrite=given.force, models=[a, b], weights=())
    fact = blame_files(a, b, draws=given.draws, seed=given.seed, on_progress=line, **session_options(given))
    if given.plot:
        with replacing(given.plot) as temporary:
            plots.write("blame", None, fact, temporary)
    return Answer(
        DONE if fact.same else DIFFERENT,
        lambda: _document().blame(fact, tool()),
        lambda: _pages("blame").blame(fact, given.limit, given.plot or ""),
        "probes",
    )


def _diff(given: Given, line: ProgressLine) -> Answer:
    from explorer.session import diff_files

    a, b = given.models
    fact = diff_files(a, b, on_progress=line, **session_options(given))
    code = DONE if fact.equal else DIFFERENT
    return Answer(code, lambda: _document().diff(fact, tool()), lambda: _pages("changes").diff(fact))


def _outline(given: Given) -> Answer:
    from explorer import glance
    from explorer.report import outline

    found = glance.outline(given.models[0])
    if given.json:
        return Answer(DONE, pieces=lambda: outline.as_json(found, _head()))
    return Answer(DONE, pieces=lambda: outline.as_text(found))


def _head() -> dict[str, Any]:
    """What every JSON document starts with."""
    from explorer.facts import SCHEMA_VERSION

    return {"schema_version": SCHEMA_VERSION, "tool": tool()}


def _formats(given: Given) -> Answer:
    if given.models:
        return _outline(given)
    from explorer import glance
    from explorer.report import formats

    found = glance.formats()
    if given.json:
        return Answer(DONE, lambda: formats.as_json(found, _head()))
    return Answer(DONE, pieces=lambda: formats.as_text(found))


INSTANT: dict[str, Callable[[Given], Answer]] = {"outline": _outline, "formats": _formats}
"""Verbs that only look at headers: nothing of a model's runs and nothing is written, so nothing has to be
kept in check around them."""

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
    "plan": _plan,
    "tile": _tile,
    "sweep": _sweep,
    "settings": _settings,
    "history": _history,
    "convert": _convert,
    "verify": _verify,
    "blame": _blame,
    "diff": _diff,
}


# the answer


def _document() -> Any:
    from explorer.report import document

    return document


def _pages(module: str) -> Any:
    """A module that makes text; it needs rich, so it is imported only when text is wanted."""
    from importlib import import_module

    return import_module(f"explorer.report.{module}")


def tool() -> str:
    """The program and its version, as JSON names it."""
    import explorer

    return f"explorer {explorer.__version__}"
