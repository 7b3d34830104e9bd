"""One record for each ATen operator, whether a module runs or a program is read from its file."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from explorer.engine.costs.aten import products, table
from explorer.engine.costs.aten.table import TABLE, count_exported_call
from explorer.engine.operators.gradients import Gradient, GradientPurpose

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from explorer.engine.costs.aten import data_dependent, dispatch  # noqa: E402


def empty(*shape: int, dtype: Any = None) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def both(name: str, args: list[Any], out: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The cost of a call of 'aten::mm.default', as it runs and as a file describes it."""
    library, _, rest = name.partition("::")
    short, _, overload = rest.partition(".")
    func = getattr(getattr(getattr(torch.ops, library), short), overload or "default")
    ran = dispatch.compute_cost(func, args, kwargs, out)
    inputs, settings = [], dict[str, Any](kwargs)
    for argument, value in zip(func._schema.arguments, args, strict=False):
        tensors = value if isinstance(value, list) else [value]
        if isinstance(tensors[0], torch.Tensor):
            inputs += [(argument.name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors]
        else:
            settings[argument.name] = value
    made = out[0] if isinstance(out, (tuple, list)) else out
    outputs = [("made", str(made.dtype).removeprefix("torch."), tuple(made.shape))]
    return ran, count_exported_call(f"{library}.{short}.{overload}", inputs, outputs, settings)


CALLS: list[tuple[str, list[Any], Any, Mapping[str, Any], int, int]] = [
    # a complex product takes four real ones, half complex two
    ("aten::mm", [empty(3, 4, dtype=torch.complex64), empty(4, 5, dtype=torch.complex64)], empty(3, 5), {},
     240, 0),
    # nothing is added where beta is 0, and nothing multiplied where alpha is 1
    ("aten::addmm", [empty(5), empty(3, 4), empty(4, 5)], empty(3, 5), {"beta": 0}, 60, 0),
    ("aten::addmm", [empty(5), empty(3, 4), empty(4, 5)], empty(3, 5), {"beta": 2}, 60, 30),
    ("aten::addmm", [empty(5), empty(3, 4), empty(4, 5)], empty(3, 5), {"alpha": 2}, 60, 30),
    ("aten::add.Scalar", [empty(3, 4), 1, 2], empty(3, 4), {}, 0, 24),
    ("aten::max", [empty(3, 4)], empty(), {}, 0, 12),
    ("aten::max.other", [empty(3, 1), empty(3, 4)], empty(3, 4), {}, 0, 12),
    # a bias that is not there is not added, whatever stands at its place
    ("aten::cudnn_convolution",
     [empty(1, 2, 5, 5), empty(3, 2, 3, 3), [0, 0], [1, 1], [1, 1], 1, False, False, True],
     empty(1, 3, 3, 3), {}, 486, 0),
    # windows over 7 that overlap by one: 3 + 3 + 3 in each direction
    ("aten::_adaptive_avg_pool2d", [empty(1, 2, 7, 7), [3, 3]], empty(1, 2, 3, 3), {}, 0, 162),
    # statistics that are not given have to be found
    ("aten::_native_batch_norm_legit.no_stats", [empty(2, 3, 4), None, None, True, 0.1, 1e-5],
     (empty(2, 3, 4),), {}, 0, 7 * 24),
    # two columns, each by a triangle of 3 x 3
    ("aten::triangular_solve", [empty(3, 2), empty(3, 3)], (empty(3, 2), empty(3, 3)), {}, 0, 18),
    # 2 heads of 3 queries and 3 keys, 4 wide: scale, mask, softmax
    ("aten::_scaled_dot_product_efficient_attention",
     [empty(1, 2, 3, 4), empty(1, 2, 3, 4), empty(1, 2, 3, 4), empty(1, 2, 3, 3), True],
     (empty(1, 2, 3, 4),), {}, 144, 18 + 18 + 90),
    ("aten::index_put", [empty(5, 4), [empty(3, dtype=torch.long)], empty(3, 4), True], empty(5, 4), {}, 0,
     12),
    ("torchvision::nms", [empty(5, 4), empty(5), 0.5], empty(5, dtype=torch.long), {}, 0, 0),
    # packed sequences: 10 steps of 3 features, 2 layers of 4 units
    ("aten::gru.data",
     [empty(10, 3), empty(5, dtype=torch.long), empty(2, 2, 4), [empty(12, 3), empty(12, 4)] * 2, False, 2,
      0.0, False, False],
     (empty(10, 4),), {}, 10 * 12 * (3 + 4) + 10 * 12 * (4 + 4), 880),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "out", "kwargs", "macs", "operations"), CALLS)
def test_a_call_costs_the_same_as_it_runs_and_as_a_file_describes_it(
    name: str, args: list[Any], out: Any, kwargs: Any, macs: int, operations: int
) -> None:
    ran, described = both(name, args, out, **kwargs)
    assert (ran.macs, ran.elementwise_ops) == (macs, operations)
    assert described == ran


def test_only_attention_that_is_told_to_leaves_out_later_positions() -> None:
    query = [empty(1, 2, 3, 4)] * 3
    cudnn, _ = both("aten::_scaled_dot_product_cudnn_attention", [*query, None, True, 0.0, False], query[0])
    causal, _ = both("aten::_scaled_dot_product_cudnn_attention", [*query, None, False, 0.0, True], query[0])
    assert "causal" not in cudnn.formula
    assert "causal pairs only" in causal.formula


@pytest.mark.parametrize(
    ("kind", "inputs", "settings"),
    [
        ("aten.max_pool2d", [("self", "float32", (1, 2, 8, 8))], {"kernel_size": [-1]}),
        ("aten.max_pool2d", [("self", "float32", (1, 2, 8, 8))], {}),
        ("aten._fft_c2c", [("self", "float32", ())], {"dim": [1]}),
        (
            "aten.addbmm",
            [("self", "float32", (2, 2))] + [("batch1", "float32", ("s0" * 80, 2, 2**61))] * 2,
            {},
        ),
        ("aten.mm", [("self", "float32", (2, 3)), ("mat2", "float32", None)], {}),
        ("aten.mm", [("self", "float32", (2, 3)), ("mat2", "float32", (4, 2))], {}),
    ],
)
def test_what_a_file_says_that_cannot_be_is_unknown(kind: str, inputs: Any, settings: Any) -> None:
    cost = count_exported_call(kind, inputs, [("made", "float32", (1, 2, 8, 8))], settings)
    assert cost.status == "unknown"
    assert cost.reason


def test_the_table_needs_no_torch() -> None:
    run = [sys.executable, "-c", f"import sys, {table.__name__}; print('torch' in sys.modules)"]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stdout == "False\n"


def exists(name: str) -> bool:
    """Whether torch knows an operator; a library registers its own as it is imported."""
    library, _, rest = name.partition("::")
    return hasattr(getattr(torch.ops, library), rest)


@pytest.mark.parametrize("rows", [TABLE, data_dependent.BOUNDS])
def test_every_record_is_of_an_operator_that_exists(rows: Any) -> None:
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers those of quantized programs
    assert not [name for name in rows if not name.startswith("transformers::") and not exists(name)]


def test_the_operators_of_transformers_are_those_that_it_registers() -> None:
    experts = pytest.importorskip("transformers.integrations.moe")
    if not hasattr(experts, "_grouped_mm_fallback"):
        pytest.skip("this transformers has no grouped products of its own")
    assert not [name for name in TABLE if name.startswith("transformers::") and not exists(name)]


def test_every_operator_that_torch_calls_its_core_has_a_record() -> None:
    """A model decomposes into these: none may be unknown."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    missing = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        overloads = [getattr(packet, o) for o in packet.overloads()] if hasattr(packet, "overloads") else []
        for operator in overloads:
            tensors = any("Tensor" in str(r.type) for r in operator._schema.returns)
            if torch.Tag.core not in operator.tags or not tensors or "backward" in name:
                continue
            if (
                not operator.has_kernel_for_dispatch_key(composite)
                and dispatch.find_operator(operator) is None
            ):
                missing.append(name)
    assert missing == []


def test_an_operator_of_another_library_is_unknown_in_every_version_of_torch() -> None:
    """torch 2.9 has no tag for reductions. Those of torch itself have rows, so nobody asks for it."""
    torch.library.custom_op(
        "explorer_table::twice", lambda x: x + x, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    assert dispatch.find_operator(torch.ops.explorer_table.twice.default) is None
    for name in (
        "all",
        "amax",
        "count_nonzero",
        "linalg_vector_norm",
        "logsumexp",
        "nansum",
        "prod",
        "var_mean",
    ):
        assert table.find_record(f"aten::{name}") is not None


#: products that autograd does not differentiate, or not as a product
WITHOUT_GRADIENT = {
    **dict.fromkeys(("_int_mm", "_scaled_mm", "_scaled_grouped_mm"), "of integers or 8-bit floats"),
    **dict.fromkeys(
        ("_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"), "its weight is packed"
    ),
}


def test_every_product_has_a_gradient_or_a_reason() -> None:
    without = {name for name, operator in products.TABLE.items() if operator.gradient is None}
    assert {name for name in without if not name.startswith("quantized::")} == set(WITHOUT_GRADIENT)


def test_a_product_of_groups_has_both_gradients() -> None:
    """Tokens sorted by expert: each product with its group's weight has a gradient of both."""
    tokens, experts = empty(4, 8), empty(2, 8, 16)
    wants: dict[int, GradientPurpose] = {id(tokens): "input", id(experts): "weight"}
    func = torch.ops.aten._grouped_mm.default
    found = dispatch.compute_gradient(
        func, [tokens, experts], {}, empty(4, 16), 65_536, lambda t: wants[id(t)]
    )
    assert found == Gradient(65_536, 65_536)
