"""Linear models, support vectors and trees of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import ValueInfoProto, helper

from explorer import Session
from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.graph.model import Model, Node
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.machine_learning import ML
from explorer.engine.operators.registry import LEARNED as LEARNED_IN

Count = Callable[..., Cost]
X = (5, 4)  # 5 rows of 4 features

EXACT = [
    # operator, output, attributes, MACs, elementwise
    ("LinearRegressor", (5, 3), {"coefficients": (0.0,) * 12, "intercepts": (0.0,) * 3}, 5 * 12, 15),
    ("LinearRegressor", (5, 3), {"coefficients": (0.0,) * 12}, 5 * 12, 0),
    # a softmax of 5 operations on each of 3 scores, then the largest
    ("LinearClassifier", (5,), {"coefficients": (0.0,) * 12, "post_transform": "SOFTMAX"}, 60, 15 * 6),
    ("LinearClassifier", (5,), {"coefficients": (0.0,) * 12, "post_transform": "LOGISTIC"}, 60, 15 * 2),
    ("LinearClassifier", (5,), {"coefficients": (0.0,) * 12, "post_transform": "PROBIT"}, 60, 15 * 2),
    # 6 support vectors: a product with each, weighed; one constant
    ("SVMRegressor", (5, 1), {"support_vectors": (0.0,) * 24, "rho": (0.1,)}, 5 * 24 + 5 * 6, 5),
    ("SVMRegressor", (5, 1), {"support_vectors": (0.0,) * 24, "kernel_type": "RBF"}, 150, 5 * 24 + 2 * 30),
    ("SVMRegressor", (5, 1), {"coefficients": (0.0,) * 4}, 20, 0),
    # 3 classes are 3 pairs; each vector is weighed twice; 2 operations and a comparison a pair
    ("SVMClassifier", (5,),
     {"support_vectors": (0.0,) * 24, "classlabels_ints": (0, 1, 2), "kernel_type": "POLY"},
     120 + 5 * 12, 3 * 30 + 2 * 15 + 15),
    ("SVMClassifier", (5,), {"coefficients": (0.0,) * 8, "classlabels_ints": (0, 1)}, 40, 10),
    ("SVMClassifier", (5,),
     {"support_vectors": (0.0,) * 24, "classlabels_ints": (0, 1), "prob_a": (1.0,), "prob_b": (0.0,)},
     120 + 30, 2 * 5 + 3 * 5 + 10),
    ("Scaler", (5, 4), {}, 0, 40),
    ("Imputer", (5, 4), {}, 0, 20),
    ("Binarizer", (5, 4), {}, 0, 20),
    ("Normalizer", (5, 4), {"norm": "MAX"}, 0, 40),
    ("Normalizer", (5, 4), {"norm": "L2"}, 0, 60),
    *((op, (5, 4), {}, 0, 0) for op in (
        "ArrayFeatureExtractor", "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer",
        "LabelEncoder", "OneHotEncoder", "ZipMap")),
]  # fmt: skip


@pytest.mark.parametrize(("op", "output", "attributes", "products", "rest"), EXACT)
def test_a_classic_model_is_counted_as_by_hand(
    count: Count, op: str, output: Any, attributes: Any, products: int, rest: int
) -> None:
    cost = count(op, [X], output, ML, **attributes)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (products, rest, "exact")


def test_probabilities_of_several_classes_are_balanced_who_knows_how_often(count: Count) -> None:
    cost = count(
        "SVMClassifier", [X], (5,), ML, support_vectors=(0.0,) * 24, classlabels_ints=(0, 1, 2), prob_a=(1.0,)
    )
    assert (cost.macs, cost.elementwise_ops, cost.status) == (120 + 60, None, "unknown")
    assert "balance the probabilities" in cost.reason


@pytest.mark.parametrize(
    ("classes", "stored", "scores"),
    [
        (2, {"support_vectors": [0.1] * 24}, 2),
        (4, {"support_vectors": [0.1] * 24}, 6),
        (4, {"support_vectors": [0.1] * 24, "prob_a": [0.1] * 6, "prob_b": [0.1] * 6}, 4),
        (4, {}, 4),
    ],
)
def test_support_vectors_have_the_scores_that_the_runtime_gives(
    tmp_path: Path, classes: int, stored: dict[str, Any], scores: int
) -> None:
    more = 6 % classes
    vectors = {"vectors_per_class": [6 // classes + 1] * more + [6 // classes] * (classes - more)}
    node = helper.make_node(
        "SVMClassifier",
        ["x"],
        ["label", "scores"],
        domain=ML,
        classlabels_ints=[*range(classes)],
        coefficients=[0.1] * (6 * (classes - 1) if stored else 4 * classes),
        rho=[0.1] * (classes * (classes - 1) // 2),
        kernel_type="RBF" if stored else "LINEAR",
        kernel_params=[0.1, 0.0, 3.0],
        **stored,
        **(vectors if stored else {}),
    )
    x, outputs = helper.make_tensor_value_info("x", 1, [5, 4]), [ValueInfoProto(name=n) for n in node.output]
    opsets = [helper.make_opsetid(ML, 3), helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "g", [x], outputs)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    with Session(tmp_path / "m.onnx") as session:
        told = {value.name: value.shape for value in session.info().model.outputs}
    run = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": np.ones((5, 4), np.float32)})
    assert [told["label"], told["scores"]] == [value.shape for value in run] == [(5,), (5, scores)]


def test_without_features_there_is_no_count(count: Count) -> None:
    assert count("SVMRegressor", [(5, "n")], (5, 1), ML, support_vectors=(0.0,) * 24).macs is None
    assert count("LinearRegressor", [(5, "n")], (5, 3), ML, coefficients=(0.0,) * 12).macs is None


# one tree of depth 3 (0 -> 1 -> 2) and a lone leaf; the leaves of the first hold two targets at most
OLD = {
    "nodes_treeids": (0, 0, 0, 0, 0, 0, 0, 1),
    "nodes_nodeids": (0, 1, 2, 3, 4, 5, 6, 0),
    "nodes_modes": ("BRANCH_LEQ", "BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "LEAF", "LEAF"),
    "nodes_truenodeids": (1, 2, 5, 0, 0, 0, 0, 0),
    "nodes_falsenodeids": (3, 4, 6, 0, 0, 0, 0, 0),
}
LEAVES = {"treeids": (0, 0, 0, 0, 0, 1), "nodeids": (3, 4, 5, 6, 6, 0), "ids": (0, 1, 0, 0, 1, 0)}


@pytest.mark.parametrize(("prefix", "op", "each"), [
    # 3 comparisons at most, 2 trees with 2 weights at most
    ("target", "TreeEnsembleRegressor", 3 + 4),
    # and the largest of 2 scores
    ("class", "TreeEnsembleClassifier", 3 + 4 + 2),
])  # fmt: skip
def test_a_tree_costs_its_longest_path_for_every_row(count: Count, prefix: str, op: str, each: int) -> None:
    leaves = {f"{prefix}_{name}": values for name, values in LEAVES.items()}
    cost = count(op, [X], (5, 2), ML, **OLD, **leaves)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, 5 * each, "bound")
    assert "longest" in cost.reason


def test_a_tree_of_the_new_form_costs_alike(count: Count) -> None:
    # node 0: true -> node 1, false -> leaf; node 1: two leaves; softmax of 5 on 2 targets
    cost = count(
        "TreeEnsemble",
        [X],
        (5, 2),
        ML,
        tree_roots=(0,),
        nodes_trueleafs=(0, 1),
        nodes_falseleafs=(1, 1),
        nodes_truenodeids=(1, 0),
        nodes_falsenodeids=(2, 1),
        n_targets=2,
        post_transform=1,
    )
    assert (cost.elementwise_ops, cost.status) == (5 * (2 + 1 + 10), "bound")


@pytest.mark.parametrize(
    ("roots", "true", "false"),
    [
        ((0,), (1, 0), (0, 0)),  # in circles
        ((0,), (1, 1), (1, 1)),  # two ways to one node, which grow to a billion
        ((0, 0), (1, 1), (1, 1)),  # one tree twice
    ],
)
def test_what_is_no_tree_has_no_cost(count: Count, roots: Any, true: Any, false: Any) -> None:
    cost = count(
        "TreeEnsemble",
        [X],
        (5, 1),
        ML,
        tree_roots=roots,
        nodes_trueleafs=(0, 0),
        nodes_falseleafs=(0, 0),
        nodes_truenodeids=true,
        nodes_falsenodeids=false,
    )
    assert (cost.macs, cost.elementwise_ops, cost.reason) == (0, None, "its nodes form no trees")


def test_a_file_that_means_no_good_is_answered_at_once(count: Count) -> None:
    vast = {"min_gram_length": 1, "max_gram_length": 10**18, "max_skip_count": 10**18}
    assert count("TfIdfVectorizer", [(3, 10**15)], (3, 7), **vast).status == "unknown"
    assert count("TfIdfVectorizer", [(3, 100)], (3, 7), **vast).status == "bound"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 4))
def test_word_groups_are_those_that_a_loop_finds(count: Any, length: int, longest: int, skips: int) -> None:
    found = 0
    for n in range(1, longest + 1):
        for skip in range(skips + 1) if n > 1 else [0]:
            found += sum(1 for start in range(length) if start + (n - 1) * (skip + 1) < length)
    cost = count(
        "TfIdfVectorizer", [(length,)], (7,), min_gram_length=1, max_gram_length=longest, max_skip_count=skips
    )
    assert cost.elementwise_ops == found


@pytest.mark.parametrize(("mode", "rest"), [
    # of 6 words: 6 single ones, 5 pairs of neighbours, 4 with one between
    ("TF", 3 * 15),
    ("TFIDF", 3 * 15 + 3 * 7),
])  # fmt: skip
def test_word_groups_are_a_bound_of_all_that_may_be_found(count: Count, mode: str, rest: int) -> None:
    cost = count(
        "TfIdfVectorizer", [(3, 6)], (3, 7), mode=mode, min_gram_length=1, max_gram_length=2, max_skip_count=1
    )
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, rest, "bound")


LEARNED = [
    (
        "LinearClassifier",
        {"coefficients": (1.0,) * 9, "intercepts": (0.0,) * 3, "classlabels_ints": (0, 1, 2)},
        12,
    ),
    ("LinearRegressor", {"coefficients": (1.0,) * 3}, 3),
    (
        "SVMRegressor",
        {
            "support_vectors": (1.0,) * 6,
            "coefficients": (1.0,) * 2,
            "rho": (0.5,),
            "kernel_params": (1.0,) * 3,
        },
        9,
    ),
    ("TreeEnsembleRegressor", {"nodes_values": (0.5, 0.0, 0.0), "target_weights": (1.0, 2.0)}, 5),
    ("Scaler", {"offset": (0.0,) * 3, "scale": (1.0,) * 3}, 6),
    ("Normalizer", {"norm": "L2"}, 0),
]


@pytest.mark.parametrize(("op", "attributes", "params"), LEARNED)
def test_what_was_learned_and_stands_in_attributes_is_counted(
    build: Callable[..., Model], op: str, attributes: dict[str, Any], params: int
) -> None:
    nodes = [Node(op, ["x"], ["a"], domain=ML, attributes=attributes), Node(op, ["x"], ["b"], domain=ML)]
    model = build(nodes, inputs={"x": (4, 3)}, outputs=["a", "b"])
    found = analyse(replace(model, opsets={**model.opsets, ML: 3}))
    row = found.layers[0]
    assert (row.params, row.weight_bytes, row.weight_bytes_read) == (params, 4 * params, 4 * params)
    assert sum(w.shape[0] for w in row.weights if w.shape) == params
    assert (found.info.totals.params, found.layers[1].params) == (params, 0)


def test_two_nodes_with_the_same_coefficients_hold_them_twice(build: Callable[..., Model]) -> None:
    nodes = [Node("Scaler", ["x"], [y], domain=ML, attributes={"scale": (2.0,)}) for y in ("a", "b")]
    model = build(nodes, inputs={"x": (4, 3)}, outputs=["a", "b"])
    assert analyse(replace(model, opsets={**model.opsets, ML: 3})).info.totals.params == 2


#: lists of numbers that are not learned, and why
NOT_LEARNED = {
    "kernel_params": "how the kernel is computed",
    "nodes_hitrates": "how often the training came by",
    "nodes_hitrates_as_tensor": "how often the training came by",
    "nodes_modes": "how a node compares, a number in the new form",
    "keys_floats": "a dictionary",
    "values_floats": "a dictionary",
    "keys_tensor": "a dictionary",
    "values_tensor": "a dictionary",
    "default_tensor": "a dictionary",
}


def test_every_list_of_numbers_in_an_attribute_is_a_parameter_or_has_a_reason() -> None:
    from onnx import defs

    kinds = (defs.OpSchema.AttrType.FLOATS, defs.OpSchema.AttrType.TENSOR)
    seen = {
        (schema.name, name)
        for schema in defs.get_all_schemas_with_history()
        if schema.domain == ML
        for name, attribute in schema.attributes.items()
        if attribute.type in kinds
    }
    assert {
        (op, name) for op, name in seen if name not in NOT_LEARNED and name not in LEARNED_IN.get(op, ())
    } == set()
