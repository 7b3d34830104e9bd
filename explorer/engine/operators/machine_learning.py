"""Operators of ai.onnx.ml: linear models, support vector machines, trees and feature preparation.

The coefficients of these operators are attributes, so counts come from the lengths of these lists. Each
stored number is one parameter, with 4 bytes for a float or with the type of its tensor. The threshold that a
file stores for a leaf counts as well. Node ids, feature ids, modes, labels, kernel settings and hit rates are
not parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call, ShapeRule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost
from explorer.engine.operators.cost_rules import free, per_output
from explorer.engine.operators.operator import Operator
from explorer.engine.operators.shape_rules import like
from explorer.facts import Dim, Shape


def _scores(count: str | int, *, labels: str = "") -> ShapeRule:
    """Makes a shape rule for a row of scores per row of features; a classifier first returns a label.

    Args:
        count: Number of scores, or name of the attribute that has it.
        labels: Prefix of the attributes that list the labels, or '' without labels.
    """

    def rule(call: Call) -> Answer:
        source = call.shape_or_none(0)
        rows: Dim = None if source is None else source[0] if len(source) > 1 else 1
        if not labels:
            return (("float32", (rows, call.integer(count, 1) if isinstance(count, str) else count)),)
        words = call.attributes.get(f"{labels}_strings")
        names = words or call.attributes.get(f"{labels}_int64s") or ()
        return (("string" if words else "int64", (rows,)), ("float32", (rows, len(names) or None)))[
            : call.output_count
        ]

    return rule


def _votes_shape(call: Call) -> Answer:
    """Infers the output types of SVMClassifier: a label and the scores.

    There is one score for each class, or for each pair of classes if there are no probabilities.
    """
    source, attributes = call.shape_or_none(0), call.attributes
    rows: Dim = None if source is None else source[0] if len(source) > 1 else 1
    words = attributes.get("classlabels_strings")
    classes = len(words or attributes.get("classlabels_ints") or ())
    has_votes = attributes.get("support_vectors") and not attributes.get("prob_a") and classes > 2
    scores = classes * (classes - 1) // 2 if has_votes else classes
    return (("string" if words else "int64", (rows,)), ("float32", (rows, scores or None)))[
        : call.output_count
    ]


def _features_shape(call: Call) -> Answer:
    """Infers the output type of FeatureVectorizer, which concatenates the columns of all inputs."""
    source = call.shape_or_none(0)
    rows = source[0] if source and len(source) > 1 else 1 if source else None
    return (("float32", (rows, sum(call.ints("inputdimensions") or ()) or None)),)


ML = "ai.onnx.ml"


_POST_TRANSFORMS = {"NONE": 0, "LOGISTIC": 1, "PROBIT": 1, "SOFTMAX": 5, "SOFTMAX_ZERO": 5}
"""Operations per score of each post transform."""

_POST_TRANSFORMS_BY_NUMBER = tuple(
    _POST_TRANSFORMS[n] for n in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
)
"""Operations per score, by the number that TreeEnsemble has for the post transform."""


_KERNELS = {"LINEAR": 0, "POLY": 3, "RBF": 2, "SIGMOID": 3}
"""Operations per product of an input and a support vector (scale, shift, function), by kernel."""


def _get_rows(call: Call) -> tuple[Shape, Dim]:
    """Returns the shape of the rows and the number of features in each row."""
    shape = call.shape(0)
    return (shape[:-1] or (1,)), shape[-1]


def _add_score_work(cost: Cost, call: Call, rows: Shape, scores: Dim, *, labels: bool) -> Cost:
    """Adds the cost of the post transform and, for labels, of finding the largest score."""
    per_score = _POST_TRANSFORMS[call.attributes.get("post_transform", "NONE")]
    if per_score:
        cost = cost_formulas.adding(cost, "post transform", (*rows, scores), per_score)
    return cost_formulas.adding(cost, "largest score", (*rows, scores)) if labels else cost


def _linear(call: Call) -> Cost:
    rows, features = _get_rows(call)
    labels = call.op.endswith("Classifier")
    coefficients = len(call.attributes["coefficients"])
    scores: Dim = coefficients // features if isinstance(features, int) and features else None
    cost = cost_formulas.counted([("rows", rows), ("features", (features,)), ("scores", (scores,))])
    if call.attributes.get("intercepts"):
        cost = cost_formulas.adding(cost, "intercepts", (*rows, scores))
    return _add_score_work(cost, call, rows, scores, labels=labels)


def _kernels(call: Call, rows: Shape, features: Dim, vectors: int) -> Cost:
    """Returns the cost of the kernel of each input with each support vector."""
    kind = call.attributes.get("kernel_type", "LINEAR")
    cost = cost_formulas.counted([("rows", rows), ("support vectors", (vectors,)), ("features", (features,))])
    if kind == "RBF":
        cost = cost_formulas.adding(cost, "differences", (*rows, vectors, features))
    per_product = _KERNELS[kind]
    return (
        cost_formulas.adding(cost, f"{kind} kernel", (*rows, vectors), per_product) if per_product else cost
    )


def _count_support_vectors(call: Call, features: Dim) -> int | None:
    """Returns the number of support vectors, or None if the number of features is unknown."""
    count = len(call.attributes.get("support_vectors", ()))
    return count // features if isinstance(features, int) and features else None


def _svm_regressor(call: Call) -> Cost:
    rows, features = _get_rows(call)
    vectors = _count_support_vectors(call, features)
    if vectors is None:
        return cost_formulas.unknown("the number of input features is not known")
    if vectors:
        weighted_sums = cost_formulas.counted([("rows", rows), ("coefficients", (vectors,))])
        cost = cost_formulas.total([_kernels(call, rows, features, vectors), weighted_sums])
    else:
        cost = cost_formulas.counted([("rows", rows), ("features", (features,))])
    cost = cost_formulas.adding(cost, "rho", rows) if call.attributes.get("rho") else cost
    return _add_score_work(cost, call, rows, 1, labels=False)


def _svm_classifier(call: Call) -> Cost:
    """Returns the cost of a one-against-one classifier: each pair of classes uses the vectors of both."""
    attributes = call.attributes
    rows, features = _get_rows(call)
    vectors = _count_support_vectors(call, features)
    if vectors is None:
        return cost_formulas.unknown("the number of input features is not known")
    classes = len(attributes.get("classlabels_ints") or attributes.get("classlabels_strings") or ())
    if not vectors:
        # without support vectors, it is a linear model with one row of coefficients per class
        scores = (
            len(attributes["coefficients"]) // features if isinstance(features, int) and features else None
        )
        cost = cost_formulas.counted([("rows", rows), ("features", (features,)), ("scores", (scores,))])
        return _add_score_work(cost, call, rows, scores, labels=True)
    pairs = classes * (classes - 1) // 2
    weighted_sums = cost_formulas.counted(
        [("rows", rows), ("support vectors", (vectors,)), ("classes but one", (classes - 1,))]
    )
    cost = cost_formulas.total([_kernels(call, rows, features, vectors), weighted_sums])
    cost = cost_formulas.adding(cost, "rho and vote", (*rows, pairs), 2)
    if attributes.get("prob_a"):
        cost = cost_formulas.adding(cost, "sigmoid of a pair", (*rows, pairs), 3)
        if classes > 2:
            reason = "the number of steps that balance the probabilities depends on the data"
            return replace(cost, elementwise_ops=None, status="unknown", reason=reason)
    return _add_score_work(cost, call, rows, classes if attributes.get("prob_a") else pairs, labels=True)


def _normalizer(call: Call) -> Cost:
    kind = call.attributes.get("norm", "MAX")
    count, detail = (2, "largest, divide") if kind == "MAX" else ELEMENTWISE["lp_norm"]
    return cost_formulas.elementwise(f"Normalizer {kind} ({detail})", call.output(), count)


def _sum_longest_paths(roots: Sequence[int], children: Mapping[int, tuple[int, ...]]) -> int | None:
    """Sums the comparisons on the longest path of each tree; returns None if the nodes are not trees.

    An invalid file may contain cycles, so every node is visited only once.

    Args:
        roots: Root node of each tree.
        children: Children that are not leaves, by interior node.
    """
    total, visited = 0, set[int]()
    for root in roots:
        level = [root] if root in children else []
        while level:
            total += 1
            if len(set(level)) != len(level) or visited.intersection(level):
                return None
            visited.update(level)
            level = [child for parent in level for child in children[parent] if child in children]
    return total


def _trees(
    call: Call, comparisons: int | None, trees: int, scores: int, max_weights: int, per_score: int
) -> Cost:
    """Returns the cost of a tree ensemble, as an upper bound of its elementwise work.

    Args:
        call: Node.
        comparisons: Comparisons on the longest paths of all trees, or None if the nodes form no trees.
        trees: Number of trees.
        scores: Number of scores per row.
        max_weights: Largest number of weights that a leaf adds to the scores.
        per_score: Operations on each score after the sum.
    """
    rows, _ = _get_rows(call)
    if comparisons is None:
        return replace(cost_formulas.unknown("its nodes form no trees"), macs=0)
    per_row = comparisons + trees * max_weights + scores * per_score
    label = f"{call.op} ({trees:,} trees, {comparisons:,} comparisons at most, leaves summed)"
    cost = cost_formulas.elementwise(label, (*rows, per_row))
    return cost_formulas.bounded_work(cost, "a row takes one path through each tree; the longest are counted")


def _tree_ensemble(call: Call) -> Cost:
    """Returns the cost of TreeEnsemble (opset 5), which lists interior nodes and leaves separately."""
    attributes = call.attributes
    leaf_flags = list(zip(attributes["nodes_trueleafs"], attributes["nodes_falseleafs"], strict=True))
    child_pairs = list(zip(attributes["nodes_truenodeids"], attributes["nodes_falsenodeids"], strict=True))
    children = {
        i: tuple(child for child, is_leaf in zip(pair, leafs, strict=True) if not is_leaf)
        for i, (pair, leafs) in enumerate(zip(child_pairs, leaf_flags, strict=True))
    }
    roots = attributes["tree_roots"]
    comparisons = _sum_longest_paths(roots, children)
    scores = attributes.get("n_targets", 1)
    return _trees(
        call,
        comparisons,
        len(roots),
        scores,
        1,
        _POST_TRANSFORMS_BY_NUMBER[attributes.get("post_transform", 0)],
    )


def _legacy_trees(call: Call) -> Cost:
    """Returns the cost of a TreeEnsembleClassifier or TreeEnsembleRegressor.

    Their attributes list nodes and leaves together.
    """
    attributes = call.attributes
    prefix = "class" if call.op.endswith("Classifier") else "target"
    names = list(zip(attributes["nodes_treeids"], attributes["nodes_nodeids"], strict=True))
    index_of = {name: i for i, name in enumerate(names)}
    is_leaf = [mode == "LEAF" for mode in attributes["nodes_modes"]]
    children = {
        i: tuple(
            index_of[tree, child]
            for child in (attributes["nodes_truenodeids"][i], attributes["nodes_falsenodeids"][i])
        )
        for i, (tree, _) in enumerate(names)
        if not is_leaf[i]
    }
    child_indices = {child for pair in children.values() for child in pair}
    roots = [i for i in range(len(names)) if i not in child_indices]
    comparisons = _sum_longest_paths(roots, children)
    weights: dict[Any, int] = {}
    for name in zip(attributes[f"{prefix}_treeids"], attributes[f"{prefix}_nodeids"], strict=True):
        weights[name] = weights.get(name, 0) + 1
    scores = len(set(attributes[f"{prefix}_ids"]))
    per_score = _POST_TRANSFORMS[attributes.get("post_transform", "NONE")] + (prefix == "class")
    return _trees(call, comparisons, len(roots), scores, max(weights.values(), default=0), per_score)


_MAX_GRAM_LENGTH = 4096
"""Maximum number of words in an n-gram. A larger number indicates a malicious file."""


def _tf_idf(call: Call) -> Cost:
    """Returns the upper bound of TfIdfVectorizer's cost: every n-gram of every row increments a counter."""
    attributes, shape = call.attributes, call.shape(0)
    rows, length = (shape[:-1] or (1,)), shape[-1]
    if not isinstance(length, int):
        return replace(cost_formulas.unknown(cost_formulas.why_unknown([("", shape)])), macs=0)
    ngrams, longest = 0, min(attributes["max_gram_length"], length)
    if longest > _MAX_GRAM_LENGTH:
        return replace(cost_formulas.unknown(f"the cost of groups of {longest:,} words is unknown"), macs=0)
    for n in range(attributes["min_gram_length"], longest + 1):
        # consecutive words of an n-gram are 1 to max_skip_count + 1 positions apart
        steps = min(attributes["max_skip_count"] + 1, (length - 1) // (n - 1)) if n > 1 else 1
        ngrams += steps * length - (n - 1) * steps * (steps + 1) // 2
    cost = cost_formulas.elementwise("TfIdfVectorizer (n-grams counted)", (*rows, ngrams))
    if attributes.get("mode", "TF") != "TF":
        cost = cost_formulas.adding(cost, "weights", call.output())
    return cost_formulas.bounded(cost, "the number of known n-grams depends on the data; all are counted")


_TREES = tuple(
    str.split("""
    nodes_values nodes_values_as_tensor nodes_splits membership_values leaf_weights base_values
    base_values_as_tensor class_weights class_weights_as_tensor target_weights target_weights_as_tensor
""")
)
"""Attributes of tree ensembles that contain parameters."""

_COEFFICIENTS = ("coefficients", "intercepts")
_VECTORS = ("support_vectors", "coefficients", "rho", "prob_a", "prob_b")

OPERATORS = (
    Operator(
        "ArrayFeatureExtractor CastMap CategoryMapper DictVectorizer LabelEncoder OneHotEncoder ZipMap",
        free,
        ML,
    ),
    Operator("FeatureVectorizer", free, ML, _features_shape),
    Operator("Binarizer", per_output(1, "compare"), ML),
    Operator("Imputer", per_output(1, "compare"), ML, like(0), learned=("imputed_value_floats",)),
    Operator(
        "Scaler", per_output(2, "subtract, scale"), ML, like(0, dtype="float32"), learned=("offset", "scale")
    ),
    Operator("Normalizer", _normalizer, ML, like(0, dtype="float32")),
    Operator("LinearClassifier", _linear, ML, learned=_COEFFICIENTS),
    Operator("LinearRegressor", _linear, ML, _scores("targets"), learned=_COEFFICIENTS),
    Operator("SVMClassifier", _svm_classifier, ML, _votes_shape, learned=_VECTORS),
    Operator("SVMRegressor", _svm_regressor, ML, _scores(1), learned=_VECTORS),
    Operator("TreeEnsemble", _tree_ensemble, ML, learned=_TREES),
    Operator("TreeEnsembleClassifier", _legacy_trees, ML, _scores("", labels="classlabels"), learned=_TREES),
    Operator("TreeEnsembleRegressor", _legacy_trees, ML, _scores("n_targets"), learned=_TREES),
    Operator("TfIdfVectorizer", _tf_idf, learned=("weights",)),
)
