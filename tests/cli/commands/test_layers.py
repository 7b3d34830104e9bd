"""`explorer layers`: the tree as a table."""

from __future__ import annotations

import pytest

import explorer

torch = pytest.importorskip("torch")


def test_a_layer_says_how_many_of_its_parameters_are_trained() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sequential(torch.nn.Linear(8, 8)))
    net[1].add_module("tied", torch.nn.Linear(8, 8))
    net[1].tied.weight = net[1][0].weight
    net[0].weight.requires_grad_(False)
    with explorer.Session(net, inputs=torch.zeros(1, 4)) as session:
        rows = {row.path: (row.params, row.trainable_params) for row in session.analysis().layers}
        assert session.info().totals.trainable_params == 8 + 64 + 8 + 8
    assert rows == {"0": (40, 8), "1": (80, 80), "1.0": (72, 72), "1.tied": (72, 72)}


def test_a_file_that_does_not_say_what_is_trained_leaves_it_open() -> None:
    with explorer.Session("sample_models/lenet.onnx") as session:
        assert {row.trainable_params for row in session.analysis().layers} == {None}
