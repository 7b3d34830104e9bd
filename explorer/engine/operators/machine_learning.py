"""Operators of ai.onnx.ml: linear models, support vectors, trees, and the steps that prepare features.

Their coefficients are attributes, not inputs, so counts come from the lengths of those lists. Each number
that is stored counts once as a parameter, as a float of 4 bytes or in its tensor's type; of a tree also the
threshold that is stored for a leaf. How a tree branches (ids of nodes and features, modes), labels, a
kernel's settings, and how often the training came by a node are no parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call, ShapeRule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost
from explorer.engine.operators.cost_rules import each, free
from explorer.engine.operators.operator import Operator
from explorer.engine.operators.shape_rules import like
from explorer.facts import Dim, Shape


def _scores(count: str | int, *, labels: str = "") -> ShapeRule:
    """A row of scores for each row of features, behind a label if the operator is a classifier.

    Args:
        count: How many scores: a number, or the attribute that says it.
        labels: Beginning of the attributes that list the labels.
    """

    def rule(call: Call) -> Answer:
        source = call.known(0)
        rows: Dim = None if source is None else source[0] if len(source) > 1 else 1
        if not labels:
            return (("float32", (rows, call.whole(count, 1) if isinstance(count, str) else count)),)
        words = call.attributes.get(f"{labels}_strings")
        names = words or call.attributes.get(f"{labels}_int64s") or ()
        return (("string" if words else "int64", (rows,)), ("float32", (rows, len(names) or None)))[
            : call.count
        ]

    return rule


def _votes_shape(call: Call) -> Answer:
    """SVMClassifier: a label, and a score for each class, or each pair of them where classes only vote."""
    source, at = call.known(0), call.attributes
    rows: Dim = None if source is None else source[0] if len(source) > 1 else 1
    words = at.get("classlabels_strings")
    classes = len(words or at.get("classlabels_ints") or ())
    voted = at.get("support_vectors") and not at.get("prob_a") and classes > 2
    scores = classes * (classes - 1) // 2 if voted else classes
    return (("string" if words else "int64", (rows,)), ("float32", (rows, scores or None)))[: call.count]


def _features_shape(call: Call) -> Answer:
    """FeatureVectorizer: the columns of all inputs side by side."""
    source = call.known(0)
    rows = source[0] if source and len(source) > 1 else 1 if source else None
    return (("float32", (rows, sum(call.ints("inputdimensions") or ()) or None)),)


ML = "ai.onnx.ml"


_POST = {"NONE": 0, "LOGISTIC": 1, "PROBIT": 1, "SOFTMAX": 5, "SOFTMAX_ZERO": 5}
"""Operations on each score behind a model, as words or as TreeEnsemble's numbers."""


_POST_NUMBERS = tuple(_POST[n] for n in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"))


_KERNELS = {"LINEAR": 0, "POLY": 3, "RBF": 2, "SIGMOID": 3}
"""Operations on each product of an input with a support vector: scale, shift, function."""


def _rows(call: Call) -> tuple[Shape, Dim]:
    """How many rows the input has, and features in each."""
    shape = call.shape(0)
    return (shape[:-1] or (1,)), shape[-1]


def _after_scores(cost: Cost, call: Call, rows: Shape, scores: Dim, *, labels: bool) -> Cost:
    """`cost` with the work after the scores: their function, and the largest of them for a label."""
    after = _POST[call.attributes.get("post_transform", "NONE")]
    if after:
        cost = cost_formulas.adding(cost, "post transform", (*rows, scores), after)
    return cost_formulas.adding(cost, "largest score", (*rows, scores)) if labels else cost


def _linear(call: Call) -> Cost:
    rows, features = _rows(call)
    labels = call.op.endswith("Classifier")
    coefficients = len(call.attributes["coefficients"])
    scores: Dim = coefficients // features if isinstance(features, int) and features else None
    cost = cost_formulas.counted([("rows", rows), ("features", (features,)), ("scores", (scores,))])
    if call.attributes.get("intercepts"):
        cost = cost_formulas.adding(cost, "intercepts", (*rows, scores))
    return _after_scores(cost, call, rows, scores, labels=labels)


def _kernels(call: Call, rows: Shape, features: Dim, vectors: int) -> Cost:
    """Each input against each support vector."""
    kind = call.attributes.get("kernel_type", "LINEAR")
    cost = cost_formulas.counted([("rows", rows), ("support vectors", (vectors,)), ("features", (features,))])
    if kind == "RBF":
        cost = cost_formulas.adding(cost, "differences", (*rows, vectors, features))
    per_product = _KERNELS[kind]
    return (
        cost_formulas.adding(cost, f"{kind} kernel", (*rows, vectors), per_product) if per_product else cost
    )


def _support_vectors(call: Call, features: Dim) -> int | None:
    count = len(call.attributes.get("support_vectors", ()))
    return count // features if isinstance(features, int) and features else None


def _svm_regressor(call: Call) -> Cost:
    rows, features = _rows(call)
    vectors = _support_vectors(call, features)
    if vectors is None:
        return cost_formulas.unknown("how many features the input has is not known")
    if vectors:
        weighed = cost_formulas.counted([("rows", rows), ("coefficients", (vectors,))])
        cost = cost_formulas.total([_kernels(call, rows, features, vectors), weighed])
    else:
        cost = cost_formulas.counted([("rows", rows), ("features", (features,))])
    cost = cost_formulas.adding(cost, "rho", rows) if call.attributes.get("rho") else cost
    return _after_scores(cost, call, rows, 1, labels=False)


def _svm_classifier(call: Call) -> Cost:
    """One against one: each pair of classes weighs the support vectors of both."""
    at = call.attributes
    rows, features = _rows(call)
    vectors = _support_vectors(call, features)
    if vectors is None:
        return cost_formulas.unknown("how many features the input has is not known")
    classes = len(at.get("classlabels_ints") or at.get("classlabels_strings") or ())
    if not vectors:
        # without support vectors the coefficients are those of a linear model, one row a class
        scores = len(at["coefficients"]) // features if isinstance(features, int) and features else None
        cost = cost_formulas.counted([("rows", rows), ("features", (features,)), ("scores", (scores,))])
        return _after_scores(cost, call, rows, scores, labels=True)
    pairs = classes * (classes - 1) // 2
    weighed = cost_formulas.counted(
        [("rows", rows), ("support vectors", (vectors,)), ("classes but one", (classes - 1,))]
    )
    cost = cost_formulas.total([_kernels(call, rows, features, vectors), weighed])
    cost = cost_formulas.adding(cost, "rho and vote", (*rows, pairs), 2)
    if at.get("prob_a"):
        cost = cost_formulas.adding(cost, "sigmoid of a pair", (*rows, pairs), 3)
        if classes > 2:
            reason = "how often the probabilities of the pairs are balanced depends on the data"
            return replace(cost, elementwise_ops=None, status="unknown", reason=reason)
    return _after_scores(cost, call, rows, classes if at.get("prob_a") else pairs, labels=True)


def _normalizer(call: Call) -> Cost:
    kind = call.attributes.get("norm", "MAX")
    count, detail = (2, "largest, divide") if kind == "MAX" else ELEMENTWISE["lp_norm"]
    return cost_formulas.elementwise(f"Normalizer {kind} ({detail})", call.output(), count)


def _deepest(roots: Sequence[int], below: Mapping[int, tuple[int, ...]]) -> int | None:
    """Sum over the trees of the comparisons on their longest path; None if they are no trees.

    A file may say that nodes stand below themselves or below one another; every node is looked at once.
    """
    total, visited = 0, set[int]()
    for root in roots:
        level = [root] if root in below else []
        while level:
            total += 1
            if len(set(level)) != len(level) or visited.intersection(level):
                return None
            visited.update(level)
            level = [son for parent in level for son in below[parent] if son in below]
    return total


def _trees(call: Call, comparisons: int | None, trees: int, scores: int, most: int, after: int) -> Cost:
    rows, _ = _rows(call)
    if comparisons is None:
        return replace(cost_formulas.unknown("its nodes form no trees"), macs=0)
    each_row = comparisons + trees * most + scores * after
    label = f"{call.op} ({trees:,} trees, {comparisons:,} comparisons at most, leaves summed)"
    cost = cost_formulas.elementwise(label, (*rows, each_row))
    return cost_formulas.bounded(cost, "a row takes one path through each tree; counted are the longest")


def _tree_ensemble(call: Call) -> Cost:
    """TreeEnsemble (opset 5): interior nodes and leaves in lists of their own."""
    at = call.attributes
    ends = list(zip(at["nodes_trueleafs"], at["nodes_falseleafs"], strict=True))
    sons = list(zip(at["nodes_truenodeids"], at["nodes_falsenodeids"], strict=True))
    below = {
        i: tuple(son for son, end in zip(pair, leafs, strict=True) if not end)
        for i, (pair, leafs) in enumerate(zip(sons, ends, strict=True))
    }
    roots = at["tree_roots"]
    comparisons = _deepest(roots, below)
    scores = at.get("n_targets", 1)
    return _trees(call, comparisons, len(roots), scores, 1, _POST_NUMBERS[at.get("post_transform", 0)])


def _old_trees(call: Call) -> Cost:
    """TreeEnsembleClassifier, TreeEnsembleRegressor: nodes of all trees in one list, leaves among them."""
    at = call.attributes
    prefix = "class" if call.op.endswith("Classifier") else "target"
    names = list(zip(at["nodes_treeids"], at["nodes_nodeids"], strict=True))
    place = {name: i for i, name in enumerate(names)}
    leaf = [mode == "LEAF" for mode in at["nodes_modes"]]
    below = {
        i: tuple(place[tree, son] for son in (at["nodes_truenodeids"][i], at["nodes_falsenodeids"][i]))
        for i, (tree, _) in enumerate(names)
        if not leaf[i]
    }
    sons = {son for pair in below.values() for son in pair}
    roots = [i for i in range(len(names)) if i not in sons]
    comparisons = _deepest(roots, below)
    weights: dict[Any, int] = {}
    for name in zip(at[f"{prefix}_treeids"], at[f"{prefix}_nodeids"], strict=True):
        weights[name] = weights.get(name, 0) + 1
    scores = len(set(at[f"{prefix}_ids"]))
    after = _POST[at.get("post_transform", "NONE")] + (prefix == "class")
    return _trees(call, comparisons, len(roots), scores, max(weights.values(), default=0), after)


_LONGEST = 4096
"""Words of a group; longer ones are of a file that means no good."""


def _tf_idf(call: Call) -> Cost:
    """Every n-gram of every row may be found, and adds one to its counter."""
    at, shape = call.attributes, call.shape(0)
    rows, length = (shape[:-1] or (1,)), shape[-1]
    if not isinstance(length, int):
        return replace(cost_formulas.unknown(cost_formulas.unbound([("", shape)])), macs=0)
    ngrams, longest = 0, min(at["max_gram_length"], length)
    if longest > _LONGEST:
        return replace(cost_formulas.unknown(f"groups of {longest:,} words are not worked out"), macs=0)
    for n in range(at["min_gram_length"], longest + 1):
        # of the words of a group each stands 1 to skips + 1 behind the one before
        steps = min(at["max_skip_count"] + 1, (length - 1) // (n - 1)) if n > 1 else 1
        ngrams += steps * length - (n - 1) * steps * (steps + 1) // 2
    cost = cost_formulas.elementwise("TfIdfVectorizer (n-grams counted)", (*rows, ngrams))
    if at.get("mode", "TF") != "TF":
        cost = cost_formulas.adding(cost, "weights", call.output())
    return cost_formulas.bounded(cost, "how many n-grams are known depends on the data; counted are all")


_TREES = tuple(
    str.split("""
    nodes_values nodes_values_as_tensor nodes_splits membership_values leaf_weights base_values
    base_values_as_tensor class_weights class_weights_as_tensor target_weights target_weights_as_tensor
""")
)


_COEFFICIENTS = ("coefficients", "intercepts")
_VECTORS = ("support_vectors", "coefficients", "rho", "prob_a", "prob_b")

OPERATORS = (
    Operator(
        "ArrayFeatureExtractor CastMap CategoryMapper DictVectorizer LabelEncoder OneHotEncoder ZipMap",
        free,
        ML,
    ),
    Operator("FeatureVectorizer", free, ML, _features_shape),
    Operator("Binarizer", each(1, "compare"), ML),
    Operator("Imputer", each(1, "compare"), ML, like(0), learned=("imputed_value_floats",)),
    Operator("Scaler", each(2, "subtract, scale"), ML, like(0, dtype="float32"), learned=("offset", "scale")),
    Operator("Normalizer", _normalizer, ML, like(0, dtype="float32")),
    Operator("LinearClassifier", _linear, ML, learned=_COEFFICIENTS),
    Operator("LinearRegressor", _linear, ML, _scores("targets"), learned=_COEFFICIENTS),
    Operator("SVMClassifier", _svm_classifier, ML, _votes_shape, learned=_VECTORS),
    Operator("SVMRegressor", _svm_regressor, ML, _scores(1), learned=_VECTORS),
    Operator("TreeEnsemble", _tree_ensemble, ML, learned=_TREES),
    Operator("TreeEnsembleClassifier", _old_trees, ML, _scores("", labels="classlabels"), learned=_TREES),
    Operator("TreeEnsembleRegressor", _old_trees, ML, _scores("n_targets"), learned=_TREES),
    Operator("TfIdfVectorizer", _tf_idf, learned=("weights",)),
)
