"""Evidence that an ONNX model computes the same in torch as in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.convert import comparison
from explorer.engine.convert.job import ConversionJob
from explorer.engine.formats.torch_module.modules import tensors
from explorer.engine.graph.model import Model
from explorer.engine.proof.verdict import Grounds, verdict_of
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.random_inputs import RandomInput, draw, sizes_of
from explorer.engine.runtime.torch_arrays import as_array, as_tensor
from explorer.facts import Verification
from explorer.host.optional_packages import error_line, silence

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

_ROUNDS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"})


def is_quantized(model: Model) -> bool:
    """Whether the model rounds intermediate values to 8 bits."""
    nodes = (*model.graph.nodes, *(n for f in model.functions.values() for n in f.nodes))
    return any(node.op in _ROUNDS or node.op.startswith("QLinear") for node in nodes)


def call_of(module: Any, names: Sequence[str], source: str) -> Callable[[Feeds], list[Array]]:
    """A function that runs a module on arrays by input name; `names` gives the order."""
    import torch

    def call(feeds: Feeds) -> list[Array]:
        inputs = [as_tensor(feeds[name]) for name in names]
        try:
            with torch.no_grad(), silence():
                result = module(*inputs)
        except ExplorerError:
            raise
        except Exception as error:
            raise BadModel(
                f"cannot be run ({error_line(error)})", where=source, hint=comparison.UNPROVED
            ) from error
        return [as_array(tensor) for _, tensor in tensors(result)]

    return call


def _can_run(session: RuntimeSession, drawn: Sequence[RandomInput]) -> bool:
    """Whether the original runs at these sizes."""
    try:
        session.run(draw(tuple(drawn), 0))
    except BadModel:
        return False
    return True


def prove(
    job: ConversionJob,
    model: Model,
    module: Any,
    cases: Sequence[Sequence[RandomInput]],
    source: str = "the torch model",
) -> Verification:
    """Runs the model in onnxruntime and in torch on the same random inputs, and compares.

    Args:
        job: Draws, seed, names for the report, and the progress callback.
        model: The ONNX model.
        module: Runs the model in torch; it takes the inputs in the model's order.
        cases: How to draw the inputs, for each set of sizes. All but the first get one draw, and sizes at
            which the model does not run are skipped.
        source: The name of `module` in messages.

    Raises:
        BadModel: The model cannot be run in one of the two.
        Cancelled: `job.cancel` said so.
    """
    session = RuntimeSession(model, what="the ONNX file")
    names = [value.name for value in model.graph.outputs]
    after = call_of(module, [v.name for v in model.graph.feeds], source)
    layers = sum(node.op in _ROUNDS for node in model.graph.nodes) if is_quantized(model) else None

    def before(feeds: Feeds) -> list[Array]:
        results = session.run(feeds)
        return [results[name] for name in names]

    proofs: list[Verification] = []
    tried = [drawn for at, drawn in enumerate(cases) if not at or _can_run(session, drawn)]
    for at, drawn in enumerate(tried):
        few = replace(job, draws=1 if at else job.draws)
        proof = comparison.compare_runs(few, model, before, after, drawn, layers)
        sizes = "" if at == 0 else f" with {', '.join(f'{d.name} {list(d.shape)}' for d in drawn)}"
        named = tuple(replace(o, name=f"{o.name}{sizes}") for o in proof.outputs)
        proofs.append(replace(proof, outputs=named))
    evidence = tuple(o for proof in proofs for o in proof.outputs)
    return replace(
        proofs[0],
        **verdict_of(Grounds(whole=evidence, draws=job.draws)),
        inputs=tuple(text for proof in proofs for text in proof.inputs),
        outputs=evidence,
        sizes=tuple(sizes_of(model, tuple(drawn)) for drawn in tried) if len(tried) > 1 else (),
        seconds=sum(proof.seconds for proof in proofs),
    )
