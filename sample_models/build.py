"""Make the sample models: `python sample_models/build.py [FOLDER]`.

Small networks of the kinds that Explorer is for, made without PyTorch, by what `explorer make` makes models
with: their weights come from the raw bits of a seeded generator, so the files are the same byte for byte.
"""

from __future__ import annotations

import io
import math
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from explorer.engine.make.builder import SeededGraph as Net
from explorer.engine.make.models import create_model

__all__ = ["MODELS", "SAMPLES", "build", "jets", "main"]


def mlp_128() -> Net:
    """One product, 128 x 128 x 128: the textbook case of tiling."""
    net = Net("mlp_128")
    x = net.add_input("x", [128, 128])
    weight = net.add_weight("onnx::MatMul_3", (128, 128), 128)
    net.add_output(net.add_node("MatMul", "/fc", x, weight), "y", [128, 128])
    return net


def linear_32x64x128() -> Net:
    """One Linear with bias, 32 rows, 64 in, 128 out: M and K fit in one 64-tile, N in two."""
    return create_model("linear:32x64x128:bias", name="linear_32x64x128")


def jsc_tiny() -> Net:
    """The jet substructure classifier's first layers: BatchNorm1d, ReLU, Linear, ReLU."""
    return create_model("mlp:bn16-relu-16x5-relu", name="jsc_tiny")


def jsc_tiny_x10() -> Net:
    """The classifier ten times larger: three of BatchNorm1d, ReLU, Linear; 1,997 trained parameters."""
    return create_model("mlp:bn16-relu-16x40-bn40-relu-40x25-bn25-relu-25x5", name="jsc_tiny_x10")


def lenet() -> Net:
    """LeNet-5 on 28x28 digits."""
    net = Net("lenet")
    x = net.add_input("input", [1, 1, 28, 28])
    x = net.add_node("Relu", "", net.add_conv("/conv1", "conv1", x, 1, 6, 5, padding=2))
    x = net.add_pool("/pool", x, 2, 2)
    x = net.add_node("Relu", "", net.add_conv("/conv2", "conv2", x, 6, 16, 5))
    x = net.add_pool("/pool", x, 2, 2)
    x = net.add_node("Flatten", "", x, axis=1)
    x = net.add_node("Relu", "", net.add_linear("/fc1", "fc1", x, 400, 120))
    x = net.add_node("Relu", "", net.add_linear("/fc2", "fc2", x, 120, 84))
    net.add_output(net.add_linear("/fc3", "fc3", x, 84, 10), "logits", [1, 10])
    return net


# (expansion, channels, repeats, stride) of each stage, as in the paper's table 2, made small
MOBILENET_STAGES = ((1, 8, 1, 1), (4, 16, 2, 2), (4, 24, 3, 2), (4, 32, 2, 2))


def mobilenet_small() -> Net:
    """Inverted residuals with depthwise convolutions, batch norm and ReLU6, on 64x64 images."""
    net = Net("mobilenet_small")

    def block(
        x: str, scope: str, path: str, first: int, channels: tuple[int, int], kernel: int, **attributes: int
    ) -> str:
        """Conv, BatchNorm, ReLU6 as the members `first`, `first + 1`, `first + 2` of a Sequential."""
        x = net.add_conv(
            f"{scope}.{first}", f"{path}.{first}", x, *channels, kernel, bias=False, **attributes
        )
        x = net.add_batch_norm(f"{scope}.{first + 1}", f"{path}.{first + 1}", x, channels[1])
        low = net.add_constant(f"{scope}.{first + 2}", 0, np.float32)
        high = net.add_constant(f"{scope}.{first + 2}", 6, np.float32)
        return net.add_node("Clip", f"{scope}.{first + 2}", x, low, high)

    x = net.add_input("input", [1, 3, 64, 64])
    x = block(x, "/features/features.0/features.0", "features.0", 0, (3, 16), 3, stride=2, padding=1)
    width, index = 16, 1
    for expansion, channels, repeats, stage_stride in MOBILENET_STAGES:
        for repeat in range(repeats):
            stride = stage_stride if repeat == 0 else 1
            scope, path = f"/features/features.{index}", f"features.{index}.conv"
            hidden, entry, member = width * expansion, x, 0
            if expansion > 1:
                x = block(x, f"{scope}/conv/conv.0/conv.0", f"{path}.0", 0, (width, hidden), 1)
                member = 1
            x = block(
                x,
                f"{scope}/conv/conv.{member}/conv.{member}",
                f"{path}.{member}",
                0,
                (hidden, hidden),
                3,
                stride=stride,
                padding=1,
                groups=hidden,
            )
            last, norm = member + 1, member + 2
            x = net.add_conv(
                f"{scope}/conv/conv.{last}", f"{path}.{last}", x, hidden, channels, 1, bias=False
            )
            x = net.add_batch_norm(f"{scope}/conv/conv.{norm}", f"{path}.{norm}", x, channels)
            if stride == 1 and width == channels:
                x = net.add_node("Add", scope, entry, x)
            width, index = channels, index + 1
    x = block(x, f"/features/features.{index}/features.{index}", f"features.{index}", 0, (width, 128), 1)
    x = net.add_node("Flatten", "", net.add_node("GlobalAveragePool", "", x), axis=1)
    net.add_output(net.add_linear("/classifier/classifier.1", "classifier.1", x, 128, 10), "output", [1, 10])
    return net


def three_inputs() -> Net:
    """Three images, a small AlexNet-like branch each, joined by one Concat."""
    net = Net("three_inputs")
    images = [net.add_input(f"image{i}", [1, 3, 64, 64]) for i in range(3)]
    branches = []
    for i, image in enumerate(images):
        scope, path = f"/branch{i}/features/features", f"branch{i}.features"
        x = net.add_conv(f"{scope}.0", f"{path}.0", image, 3, 16, 11, stride=4, padding=2)
        x = net.add_pool(f"{scope}.2", net.add_node("Relu", f"{scope}.1", x), 3, 2)
        x = net.add_node(
            "Relu", f"{scope}.4", net.add_conv(f"{scope}.3", f"{path}.3", x, 16, 32, 3, padding=1)
        )
        x = net.add_pool(f"{scope}.5", x, 3, 2)
        branches.append(net.add_node("Flatten", f"/branch{i}", x, axis=1))
    x = net.add_node("Concat", "", *branches, axis=1)
    x = net.add_node("Relu", "/head/head.1", net.add_linear("/head/head.0", "head.0", x, 3 * 288, 64))
    net.add_output(net.add_linear("/head/head.2", "head.2", x, 64, 10), "scores", [1, 10])
    return net


BERT = {"vocabulary": 256, "positions": 64, "hidden": 64, "heads": 4, "inner": 256, "layers": 3}


def bert_tiny() -> Net:
    """A BERT-like encoder, batch and sequence dynamic: embeddings, attention, layer norm, GELU, pooler."""
    net = Net("bert_tiny")
    hidden, heads, inner = BERT["hidden"], BERT["heads"], BERT["inner"]
    ids = net.add_input("input_ids", ["batch", "sequence"], TensorProto.INT64)
    mask = net.add_input("attention_mask", ["batch", "sequence"], TensorProto.INT64)
    types = net.add_input("token_type_ids", ["batch", "sequence"], TensorProto.INT64)

    def size(scope: str, x: str, axis: int) -> str:
        """One dimension of `x` as a vector of one element, spelled out as the exporter does."""
        dim = net.add_node(
            "Gather", scope, net.add_node("Shape", scope, x), net.add_constant(scope, axis, np.int64), axis=0
        )
        return net.add_node("Unsqueeze", scope, dim, net.add_constant(scope, [0], np.int64))

    def table(scope: str, path: str, rows: int, index: str) -> str:
        return net.add_node("Gather", scope, net.add_weight(f"{path}.weight", (rows, hidden), 4), index)

    def norm(scope: str, path: str, x: str) -> str:
        gain = net.add_parameter(f"{path}.weight", net.draw_uniform((hidden,), 0.5, 1.5))
        shift = net.add_parameter(f"{path}.bias", net.draw_uniform((hidden,), -0.2, 0.2))
        return net.add_node("LayerNormalization", scope, x, gain, shift, axis=-1, epsilon=1e-12)

    def dense(scope: str, path: str, x: str, cin: int, cout: int) -> str:
        """A Linear on three axes: the exporter stores its weight transposed and adds the bias in front."""
        weight = net.add_weight(f"onnx::MatMul_{len(net.nodes)}", (cin, cout), cin)
        product = net.add_node("MatMul", scope, x, weight)
        return net.add_node("Add", scope, net.add_weight(f"{path}.bias", (cout,), cin), product)

    def heads_first(scope: str, x: str, perm: Sequence[int]) -> str:
        """[batch, sequence, hidden] to [batch, heads, sequence, hidden / heads], or its transpose."""
        split = (
            net.add_constant(scope, [heads], np.int64),
            net.add_constant(scope, [hidden // heads], np.int64),
        )
        shape = net.add_node("Concat", scope, size(scope, x, 0), size(scope, x, 1), *split, axis=0)
        return net.add_node("Transpose", scope, net.add_node("Reshape", scope, x, shape), perm=perm)

    scope = "/embeddings"
    word = table(f"{scope}/word_embeddings", "embeddings.word_embeddings", BERT["vocabulary"], ids)
    kind = table(f"{scope}/token_type_embeddings", "embeddings.token_type_embeddings", 2, types)
    positions = net.add_parameter(
        "embeddings.position_ids", np.arange(BERT["positions"], dtype=np.int64).reshape(1, -1)
    )
    start, axes = net.add_constant(scope, [0], np.int64), net.add_constant(scope, [1], np.int64)
    place = net.add_node("Slice", scope, positions, start, size(scope, ids, 1), axes)
    place = table(f"{scope}/position_embeddings", "embeddings.position_embeddings", BERT["positions"], place)
    x = net.add_node("Add", scope, net.add_node("Add", scope, word, kind), place)
    x = norm(f"{scope}/LayerNorm", "embeddings.LayerNorm", x)

    # 0 where a token may be looked at, -10,000 where it may not
    mask = net.add_node("Unsqueeze", "", mask, net.add_constant("", [1, 2], np.int64))
    mask = net.add_node(
        "Sub", "", net.add_constant("", 1, np.float32), net.add_node("Cast", "", mask, to=TensorProto.FLOAT)
    )
    mask = net.add_node("Mul", "", mask, net.add_constant("", -10000, np.float32))

    for layer in range(BERT["layers"]):
        scope, path = f"/encoder/layer.{layer}", f"encoder.layer.{layer}"
        own, own_path = f"{scope}/attention/self", f"{path}.attention.self"
        query = dense(f"{own}/query", f"{own_path}.query", x, hidden, hidden)
        key = dense(f"{own}/key", f"{own_path}.key", x, hidden, hidden)
        value = dense(f"{own}/value", f"{own_path}.value", x, hidden, hidden)
        query, value = heads_first(own, query, [0, 2, 1, 3]), heads_first(own, value, [0, 2, 1, 3])
        scores = net.add_node("MatMul", own, query, heads_first(own, key, [0, 2, 3, 1]))
        scores = net.add_node(
            "Div", own, scores, net.add_constant(own, math.sqrt(hidden // heads), np.float32)
        )
        weights = net.add_node("Softmax", own, net.add_node("Add", own, scores, mask), axis=-1)
        context = net.add_node(
            "Transpose", own, net.add_node("MatMul", own, weights, value), perm=[0, 2, 1, 3]
        )
        width = net.add_constant(own, [hidden], np.int64)
        shape = net.add_node("Concat", own, size(own, context, 0), size(own, context, 1), width, axis=0)
        context = net.add_node("Reshape", own, context, shape)
        out = f"{scope}/attention/output"
        y = dense(f"{out}/dense", f"{path}.attention.output.dense", context, hidden, hidden)
        x = norm(f"{out}/LayerNorm", f"{path}.attention.output.LayerNorm", net.add_node("Add", out, y, x))
        y = dense(f"{scope}/intermediate/dense", f"{path}.intermediate.dense", x, hidden, inner)
        gelu = f"{scope}/intermediate/intermediate_act_fn"
        erf = net.add_node(
            "Erf", gelu, net.add_node("Div", gelu, y, net.add_constant(gelu, math.sqrt(2), np.float32))
        )
        y = net.add_node(
            "Mul", gelu, y, net.add_node("Add", gelu, erf, net.add_constant(gelu, 1, np.float32))
        )
        y = net.add_node("Mul", gelu, y, net.add_constant(gelu, 0.5, np.float32))
        y = dense(f"{scope}/output/dense", f"{path}.output.dense", y, inner, hidden)
        y = net.add_node("Add", f"{scope}/output", y, x)
        x = norm(f"{scope}/output/LayerNorm", f"{path}.output.LayerNorm", y)
    net.add_output(x, "last_hidden_state", ["batch", "sequence", hidden])

    first = net.add_node(
        "Gather", "/pooler", "last_hidden_state", net.add_constant("/pooler", 0, np.int64), axis=1
    )
    first = net.add_linear("/pooler/dense", "pooler.dense", first, hidden, hidden)
    pooled = net.add_node("Tanh", "/pooler/activation", first)
    net.add_output(pooled, "pooler_output", ["batch", hidden])
    return net


def lstm_tiny() -> Net:
    """Words spotted in sound: 20 features a step, an LSTM of 32 both ways, a Linear on every step.

    Batch and sequence are dynamic. LSTM wants the steps first, so the model turns its input and its output.
    """
    net = Net("lstm_tiny")
    features, hidden, words = 20, 32, 12
    x = net.add_input("features", ["batch", "sequence", features])
    scope = "/lstm"
    x = net.add_node("Transpose", scope, x, perm=[1, 0, 2])
    weights = [
        net.add_weight("onnx::LSTM_W", (2, 4 * hidden, features), hidden),
        net.add_weight("onnx::LSTM_R", (2, 4 * hidden, hidden), hidden),
        net.add_weight("onnx::LSTM_B", (2, 8 * hidden), hidden),
    ]
    x = net.add_node("LSTM", scope, x, *weights, hidden_size=hidden, direction="bidirectional")
    x = net.add_node("Transpose", scope, x, perm=[0, 2, 1, 3])
    x = net.add_node("Reshape", scope, x, net.add_constant(scope, [0, 0, -1], np.int64))
    x = net.add_node("Transpose", scope, x, perm=[1, 0, 2])
    product = net.add_node(
        "MatMul", "/classifier", x, net.add_weight("onnx::MatMul_9", (2 * hidden, words), 2 * hidden)
    )
    scores = net.add_node(
        "Add", "/classifier", net.add_weight("classifier.bias", (words,), 2 * hidden), product
    )
    net.add_output(scores, "scores", ["batch", "sequence", words])
    return net


MODELS: dict[str, Callable[[], Net]] = {
    "bert_tiny": bert_tiny,
    "jsc_tiny": jsc_tiny,
    "jsc_tiny_x10": jsc_tiny_x10,
    "lenet": lenet,
    "linear_32x64x128": linear_32x64x128,
    "lstm_tiny": lstm_tiny,
    "mlp_128": mlp_128,
    "mobilenet_small": mobilenet_small,
    "three_inputs": three_inputs,
}


SAMPLES = {"jets_train": 4000, "jets_test": 1000}
"""Data sets for the two jet classifiers, `sample_models/jsc.py`: how many samples."""


def jets(name: str) -> bytes:
    """Features [n, 16] and classes [n] of a data set, as an .npz.

    Each of the five classes has two clusters, so that no plane tells it from the others. All is done in whole
    numbers, which come out the same everywhere; a cluster's spread is the sum of twelve uniform draws.
    """
    count, features, classes = SAMPLES[name], 16, 5

    def draw(seed: str, most: int, *shape: int) -> np.ndarray:
        raw = np.asarray(np.random.PCG64(zlib.crc32(seed.encode())).random_raw(math.prod(shape)), np.uint64)
        return (raw >> np.uint64(33)).astype(np.int64).reshape(shape) % most

    centres = draw("jets", 4096, classes, 2, features) - 2048
    labels, halves = draw(f"{name} labels", classes, count), draw(f"{name} halves", 2, count)
    spread = draw(name, 1024, 12, count, features).sum(axis=0) - 6 * 1024
    values = (centres[labels, halves] + 3 * spread // 2).astype(np.float32) / np.float32(1024)
    file = io.BytesIO()
    np.savez(file, x=values, y=labels.astype(np.int64))
    return file.getvalue()


def build(name: str) -> bytes:
    """The bytes of a sample model's file, checked."""
    model = MODELS[name]().build_model("explorer sample_models/build.py")
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


def main(folder: Path) -> None:
    for name in MODELS:
        data = build(name)
        (folder / f"{name}.onnx").write_bytes(data)
        print(f"{name}.onnx  {len(data):>9,} bytes")
    for name in SAMPLES:
        data = jets(name)
        (folder / f"{name}.npz").write_bytes(data)
        print(f"{name}.npz  {len(data):>9,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
