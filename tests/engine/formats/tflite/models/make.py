"""Makes the models in this folder, with TensorFlow's own converter, and what its interpreter says of them.

TensorFlow takes 600 MB, so it is no part of the tests: the models are kept. Run in an environment with it
(2.21 made these): `python make.py`. Weights are seeded. `shapes.json` holds the shape of every tensor that an
operator makes, by its name, as the interpreter has it after a run at the sizes of inputs given there. The
ONNX files were made of the models of their names: `python -m tf2onnx.convert --opset 17 --tflite M
--output O`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
keras = tf.keras
layers = keras.layers
keras.utils.set_random_seed(0)


def draws():
    drawn = np.random.default_rng(0)
    for _ in range(4):
        yield [drawn.random((1, 6, 6, 3), np.float32)]


def converted(model, kind=""):
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if kind:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if kind == "int8":
        converter.representative_dataset = draws
    if kind == "behind":
        converter.optimizations = []
        converter._experimental_use_buffer_offset = True
    return converter.convert()


def convolutions():
    given = keras.Input(batch_shape=(1, 6, 6, 3))
    x = layers.Conv2D(4, 3, activation="relu")(given)
    x = layers.DepthwiseConv2D(3)(x)
    x = layers.Conv2DTranspose(2, 3, strides=2)(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(given, layers.Dense(5, activation="softmax")(x))


def batched():
    given = keras.Input((6, 6, 3))
    x = layers.Conv2D(4, 3, padding="same", strides=2, activation="relu")(given)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Flatten()(x)
    return keras.Model(given, layers.Dense(5, activation="softmax")(x))


def attention():
    given = keras.Input((None, 8))
    x = layers.MultiHeadAttention(2, 4)(given, given)
    return keras.Model(given, layers.LayerNormalization()(x + given))


def lstm():
    given = keras.Input(batch_shape=(1, 7, 5))
    return keras.Model(given, layers.Dense(2)(layers.LSTM(3)(given)))


class Flow(tf.Module):
    """Five products in a loop, then one in a branch."""

    @tf.function(input_signature=[tf.TensorSpec([4, 8], tf.float32)])
    def run(self, x):
        weight = tf.constant(np.random.default_rng(0).random((8, 8), np.float32))
        _, x = tf.while_loop(
            lambda i, _: i < 5, lambda i, x: (i + 1, tf.matmul(x, weight)), [tf.constant(0), x]
        )
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, weight), lambda: x)


class Operators(tf.Module):
    """Every way in which a size that is left open goes on, on (?, 8, 6, 4)."""

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 6, 4], tf.float32)])
    def run(self, x):
        batch = tf.shape(x)[0]
        drawn = np.random.default_rng(0)
        left, right = tf.split(x, 2, -1)
        first, rest = tf.split(x, [1, 5], 2)
        cut = x[:, 1:7:2, ::-1, 1]
        turned = tf.transpose(x, [0, 3, 1, 2])
        wide = tf.reshape(x, [batch, -1])
        best, places = tf.math.top_k(wide, 5)
        one, other = tf.unstack(tf.stack([x, x + 1.0], 1), axis=1)
        summed = tf.reduce_sum(x, [1, 2], keepdims=True)
        window = drawn.random((3, 3, 2, 4), np.float32)
        found = [
            tf.nn.conv2d(x, drawn.random((3, 3, 4, 4), np.float32), 1, "SAME", dilations=2),
            tf.nn.depth_to_space(tf.nn.space_to_depth(x, 2) + 1.0, 2),
            left * right,
            first,
            rest,
            tf.pad(x, [[0, 0], [1, 2], [0, 0], [0, 0]]),
            tf.pad(x, [[0, 0], [1, 2], [0, 0], [0, 0]], "REFLECT"),
            cut,
            tf.slice(x, [0, 1, 2, 0], [-1, 3, -1, 2]),
            tf.reshape(turned, [batch * 4, 48]),
            best,
            tf.one_hot(tf.argmax(wide, -1), 7),
            tf.gather(drawn.random((9, 3), np.float32), places % 9),
            tf.tile(x, [2, 1, 3, 1]),
            tf.fill([batch, 3], 1.0),
            tf.broadcast_to(tf.constant([[1.0], [2.0]]), [2, batch]),
            one * other,
            tf.image.resize(x, [5, 7]),
            tf.image.resize(x, [16, 12], "nearest"),
            tf.reduce_max(x, [0, 3]),
            tf.matmul(turned, tf.transpose(turned, [0, 1, 3, 2])),
            tf.cast(tf.range(batch), tf.float32),
            tf.where(x > 0.5, x, tf.zeros_like(x)),
            tf.nn.avg_pool2d(x, 3, 2, "VALID"),
            tf.nn.conv2d_transpose(x, window, [batch, 16, 12, 2], 2, "SAME"),
            tf.squeeze(summed, [1, 2]),
            tf.expand_dims(cut, 1),
            tf.reverse(x, [1]),
            tf.cumsum(x, 1),
        ]
        return {f"out{at:02}": tf.abs(value) for at, value in enumerate(found)}


def operators():
    module = Operators()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.run.get_concrete_function()], module)
    return converter.convert()


def flow():
    module = Flow()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.run.get_concrete_function()], module)
    return converter.convert()


def shapes(content, sizes):
    interpreter = tf.lite.Interpreter(
        model_content=content,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    for detail in interpreter.get_input_details():
        if sizes is not None:
            interpreter.resize_tensor_input(detail["index"], sizes)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], np.zeros(detail["shape"], detail["dtype"]))
    for detail in interpreter.get_input_details():
        shape = interpreter.get_tensor(detail["index"]).shape
        interpreter.set_tensor(detail["index"], np.zeros(shape, detail["dtype"]))
    interpreter.invoke()
    made = {n for op in interpreter._get_ops_details() for n in op["outputs"]}
    return {
        detail["name"]: [int(d) for d in interpreter.get_tensor(detail["index"]).shape]
        for detail in interpreter.get_tensor_details()
        if detail["index"] in made
    }


def main():
    models = {
        "convolutions": converted(convolutions()),
        "convolutions_float16": converted(convolutions(), "float16"),
        "convolutions_int8": converted(convolutions(), "int8"),
        "behind": converted(convolutions(), "behind"),
        "batched": converted(batched()),
        "batched_dynamic_range": converted(batched(), "dynamic range"),
        "attention": converted(attention()),
        "lstm": converted(lstm()),
        "flow": flow(),
        "operators": operators(),
    }
    said = {}
    for name, content in models.items():
        (HERE / f"{name}.tflite").write_bytes(content)
        print(f"{name}: {len(content):,} bytes")
    for name, sizes in (
        ("batched", None),
        ("batched", [3, 6, 6, 3]),
        ("attention", None),
        ("attention", [2, 5, 8]),
        ("operators", None),
        ("operators", [5, 8, 6, 4]),
    ):
        said[f"{name} {sizes}"] = shapes(models[name], sizes)
    (HERE / "shapes.json").write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
