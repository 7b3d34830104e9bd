"""`explorer ops --fx`: nodes as torch.fx traces them, and as torch.export has them where fx cannot."""

import csv
import io
import json
import re
import sys

import numpy as np
import pytest
import torch
from torch import fx, nn

from explorer.base.errors import BadModel, Misuse
from explorer.cli.main import main
from explorer.session import Session

CODE = """
import torch
from torch import nn
from torch.nn import functional

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.ReLU()
        self.shift = nn.Parameter(torch.zeros(4, 1, 1))

    def forward(self, x, scale=2.0):
        x = self.act(self.act(self.conv(x)))
        return functional.gelu(x + self.shift).flatten(1) * scale

class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0 and len(x.shape) > 1:
            return x * 2
        return x

class Steps(nn.Module):
    def forward(self, x):
        if len(x) > 1:
            x = x.relu()
        return x

class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x):
        return self.inner(self.fc(x))

def plain():
    return Plain(), torch.zeros(1, 3, 5, 5)

def steps():
    return Holder(Steps()), torch.zeros(2, 4)

def branch():
    return Holder(Branch()), torch.zeros(2, 4)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "nets_to_trace.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("nets_to_trace", None)


def test_nodes_are_counted_by_kind_and_module(here):
    with Session("nets_to_trace:plain") as session:
        found = session.fx_graph()
    import nets_to_trace

    own = fx.symbolic_trace(nets_to_trace.Plain())
    kinds = [node.op for node in own.graph.nodes]
    assert [node.kind for node in found.nodes] == kinds
    assert found.kinds == {kind: kinds.count(kind) for kind in found.kinds}
    assert set(found.kinds) == {
        *("placeholder", "get_attr", "call_function", "call_module", "call_method", "output")
    }
    assert found.modules == (("ReLU", 2), ("Conv2d", 1))
    assert (found.traced_by, found.reason) == ("torch.fx", "")
    by_name = {node.name: node for node in found.nodes}
    conv = by_name["conv"]
    assert (conv.target, conv.type, conv.dtype) == ("conv", "Conv2d", "float32")
    assert conv.inputs == ((1, 3, 5, 5),)
    assert conv.outputs[0].shape == (1, 4, 3, 3)
    assert by_name["shift"].type == "Parameter"
    assert by_name["gelu"].target == "gelu"
    assert by_name["flatten"].outputs[0].shape == (1, 36)


def test_a_module_that_fx_cannot_trace_is_named_with_its_line_and_exported(here):
    with Session("nets_to_trace:steps") as session:
        found = session.fx_graph()
    assert found.traced_by == "torch.export"
    line = next(at for at, text in enumerate(CODE.splitlines(), 1) if "if len(x) > 1" in text)
    assert f"in inner at nets_to_trace.py:{line}" in found.reason
    assert [node.target for node in found.nodes if node.kind == "call_function"] == [
        "aten.linear.default",
        "aten.relu.default",
    ]
    assert {node.layer for node in found.nodes if node.kind == "call_function"} == {"fc", "inner"}


def test_where_a_layer_of_torchs_own_cannot_be_traced_its_line_is_named():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    with Session(encoder, input_shapes={"src": (None, (1, 3, 8))}) as session:
        found = session.fx_graph()
    assert found.traced_by == "torch.export"
    assert re.match(r"at transformer\.py:\d+: ", found.reason)


def test_what_neither_can_take_is_one_line(here, capsys):
    with Session("nets_to_trace:branch") as session, pytest.raises(BadModel, match="in inner at nets_to"):
        session.fx_graph()
    assert main(["ops", "--fx", "nets_to_trace:branch"]) == 2
    err = capsys.readouterr().err
    assert "nor torch.export" in err
    assert err.count("\n") == 1


def test_statistics_are_of_what_every_node_puts_out(here, capsys):
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 5)).astype(np.float32)
    np.save("x.npy", x)
    words = ["ops", "--fx", "nets_to_trace:plain", "--stat", "mean,max", "--input", "x.npy", "--csv"]
    assert main(words) == 0
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    import nets_to_trace

    torch.manual_seed(0)
    module = nets_to_trace.Plain().eval()
    with torch.no_grad():
        conv = module.conv(torch.from_numpy(x))
        gelu = nn.functional.gelu(conv.relu() + module.shift)
    for name, expected in (("conv", conv), ("gelu", gelu)):
        assert float(rows[name]["mean"]) == pytest.approx(expected.double().mean().item(), rel=1e-5)
        assert float(rows[name]["max"]) == pytest.approx(expected.max().item(), rel=1e-6)
    assert rows["output"]["mean"] == ""


def test_the_answer_is_a_table_and_json(here, capsys):
    assert main(["ops", "--fx", "nets_to_trace:steps"]) == 0
    said = capsys.readouterr().out
    assert "torch.fx cannot trace it" in said
    assert "aten.linear.default" in said
    assert main(["ops", "--fx", "resnet18", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kinds"]["call_module"] == 60
    assert document["totals"]["params"] == 11_689_512
    assert document["nodes"][1]["outputs"][0]["shape"] == [1, 64, 112, 112]


def test_graphs_are_not_traced_and_statistics_are_of_fx(here, sample, capsys):
    with Session(sample("lenet")) as session, pytest.raises(Misuse, match="this model is not one"):
        session.fx_graph()
    assert main(["ops", str(sample("lenet")), "--stat", "mean"]) == 2
    assert "--fx" in capsys.readouterr().err
    assert main(["ops", "--fx", "nets_to_trace:plain", "--stat", "meen"]) == 2
    assert "did you mean 'mean'" in capsys.readouterr().err
