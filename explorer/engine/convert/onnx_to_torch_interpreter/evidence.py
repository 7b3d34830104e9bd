"""Evidence that an ONNX model computes the same in torch as in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.convert import comparison
from explorer.engine.convert.job import ConversionJob
from explorer.engine.formats.torch_module.modules import walk_tensors
from explorer.engine.graph.model import Model
from explorer.engine.proof.verdict import Grounds, decide_verdict
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.random_inputs import RandomInput, draw, get_symbol_sizes
from explorer.engine.runtime.torch_arrays import convert_to_array, convert_to_tensor
from explorer.facts import Verification
from explorer.host.optional_packages import format_error, silence

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

_ROUNDING_OPERATORS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"})
"""Operators that count as one layer of rounding to 8 bits."""


def is_quantized(model: Model) -> bool:
    """Whether the model rounds intermediate values to 8 bits."""
    nodes = (*model.graph.nodes, *(n for f in model.functions.values() for n in f.nodes))
    return any(node.op in _ROUNDING_OPERATORS or node.op.startswith("QLinear") for node in nodes)


def make_torch_runner(module: Any, names: Sequence[str], source: str) -> Callable[[Feeds], list[Array]]:
    """Returns a function that runs a module on arrays by input name; `names` gives their order."""
    import torch

    def call(feeds: Feeds) -> list[Array]:
        inputs = [convert_to_tensor(feeds[name]) for name in names]
        try:
            with torch.no_grad(), silence():
                result = module(*inputs)
        except ExplorerError:
            raise
        except Exception as error:
            raise BadModel(
                f"cannot be run ({format_error(error)})", where=source, hint=comparison.NO_VERIFY_HINT
            ) from error
        return [convert_to_array(tensor) for _, tensor in walk_tensors(result)]

    return call


def _can_run(session: RuntimeSession, input_plans: Sequence[RandomInput]) -> bool:
    """Whether the ONNX model runs at these sizes."""
    try:
        session.run(draw(tuple(input_plans), 0))
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
    """Runs the model in onnxruntime and in torch on the same random inputs, and compares the outputs.

    Args:
        job: Draws, seed, names for the report, and progress callback.
        model: ONNX model.
        module: Module that runs the model in torch; it takes the inputs in the model's order.
        cases: Random-input plans for each set of sizes. All but the first set get one draw, and are skipped
            if the model does not run at their sizes.
        source: Name of `module` in messages.

    Raises:
        BadModel: onnxruntime or torch cannot run the model.
        Cancelled: The user canceled (`job.cancel`).
    """
    session = RuntimeSession(model, label="the ONNX file")
    names = [value.name for value in model.graph.outputs]
    run_torch = make_torch_runner(module, [v.name for v in model.graph.required_inputs], source)
    layers = (
        sum(node.op in _ROUNDING_OPERATORS for node in model.graph.nodes) if is_quantized(model) else None
    )

    def run_onnxruntime(feeds: Feeds) -> list[Array]:
        results = session.run(feeds)
        return [results[name] for name in names]

    proofs: list[Verification] = []
    runnable_cases = [
        input_plans for index, input_plans in enumerate(cases) if not index or _can_run(session, input_plans)
    ]
    for index, input_plans in enumerate(runnable_cases):
        case_job = replace(job, draws=1 if index else job.draws)
        proof = comparison.compare_runs(case_job, model, run_onnxruntime, run_torch, input_plans, layers)
        sizes = "" if index == 0 else f" with {', '.join(f'{d.name} {list(d.shape)}' for d in input_plans)}"
        outputs = tuple(replace(output, name=f"{output.name}{sizes}") for output in proof.outputs)
        proofs.append(replace(proof, outputs=outputs))
    output_evidence = tuple(output for proof in proofs for output in proof.outputs)
    return replace(
        proofs[0],
        **decide_verdict(Grounds(model_outputs=output_evidence, draws=job.draws)),
        inputs=tuple(text for proof in proofs for text in proof.inputs),
        outputs=output_evidence,
        sizes=tuple(get_symbol_sizes(model, tuple(input_plans)) for input_plans in runnable_cases)
        if len(runnable_cases) > 1
        else (),
        seconds=sum(proof.seconds for proof in proofs),
    )
