"""Notebooks and scripts: summaries, answers as HTML and as data frames, and modules of the user's own."""

from __future__ import annotations

import html.parser
import importlib
import pickle
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import explorer
from explorer import Session, SplitSpec, TileSpec, facts
from explorer.base.checked import Spec
from explorer.base.errors import MissingExtra, Misuse
from explorer.base.fact import Fact, TableFact
from explorer.base.features import list_offers

SAMPLES = Path(__file__).parents[2] / "sample_models"
LENET = str(SAMPLES / "lenet.onnx")


class Tags(html.parser.HTMLParser):
    """Tags of a fragment; `unbalanced` has those that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(text)
        self.unbalanced += self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def net(torch: Any) -> Any:
    block = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
    return torch.nn.Sequential(torch.nn.Flatten(), block, torch.nn.Linear(16, 4))


def test_a_summary_has_the_totals_and_layers_of_the_analysis(net: Any) -> None:
    table = explorer.summary(net, input_size=(3, 2, 4), verbose=0)
    with Session(net, input_shapes={"": (None, (3, 2, 4))}) as session:
        analysis = session.analysis()
    assert (table.total_params, table.total_mult_adds) == (8 * 16 + 16 + 16 * 4 + 4, 3 * (8 * 16 + 16 * 4))
    assert table.trainable_params == table.totals.params == analysis.info.totals.params
    assert [layer.path for layer in table.layers] == [layer.path for layer in analysis.layers]
    assert table.to_dict()["totals"]["macs"] == table.total_mult_adds
    assert [row["path"] for row in table.to_dict()["layers"]] == ["0", "1", "1.0", "1.1", "2"]
    assert next(name for name, _ in net.named_parameters()) == "1.0.weight"
    assert net.training, "the module stays as it was"


def test_a_summary_prints_once_in_a_script_and_not_in_an_interactive_session(
    net: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = explorer.summary(net, (3, 8))
    assert capsys.readouterr().out == f"{table}\n" == f"{table!r}\n"
    assert re.search(r"^ +0 +Linear +\[3, 16\] +144", str(table), re.M)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    explorer.summary(net, (3, 8))
    assert capsys.readouterr().out == ""


def test_depth_folds_the_text_and_verbose_lists_the_tensors(net: Any) -> None:
    shallow = str(explorer.summary(net, (3, 8), depth=1, verbose=0))
    assert "Sequential" in shallow
    assert "ReLU" not in shallow
    detailed = explorer.summary(net, (3, 8), verbose=2)
    assert re.search(r"^ +weight +float32 +\[16, 8\] +128", str(detailed), re.M)


@pytest.mark.parametrize(
    ("names", "heads"),
    [
        (("input_size", "output_size", "num_params", "kernel_size", "mult_adds", "trainable"), "Trainable"),
        (("params_percent", "read"), "of params"),
    ],
)
def test_columns_have_torchinfos_names_or_ours(net: Any, names: tuple[str, ...], heads: str) -> None:
    table = explorer.summary(net, (3, 8), col_names=names, verbose=0)
    assert heads in str(table)
    assert len(table.columns) == len(names) + 1


def build_models(torch: Any) -> list[tuple[Any, tuple[int, ...]]]:
    class Twice(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act = torch.nn.Linear(4, 4), torch.nn.Tanh()

        def forward(self, x: Any) -> Any:
            return self.fc(self.act(self.fc(x))) + x

    nn = torch.nn
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.MaxPool2d(2))
    deep = nn.Sequential(nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(4, 2)))), nn.Sigmoid())
    return [
        (nn.Sequential(block, nn.Flatten(), nn.Linear(36, 5)), (2, 3, 8, 8)),
        (deep, (1, 4)),
        (Twice(), (1, 4)),
    ]


@pytest.mark.parametrize(
    "settings", [("depth", "var_names"), ("ascii_only",), ("ascii_only", "depth"), ("var_names",)]
)
@pytest.mark.parametrize("place", range(3))
def test_rows_have_torchinfos_names(torch: Any, place: int, settings: tuple[Any, ...]) -> None:
    torchinfo = pytest.importorskip("torchinfo")
    model, size = build_models(torch)[place]
    options: dict[str, Any] = {"depth": 4, "verbose": 0, "row_settings": (*settings, "hide_recursive_layers")}

    def read_names(text: str) -> list[str]:
        rows = [
            re.split(r"  +(?=\[|-)", line)[0] for line in text.splitlines() if re.match(r"├|│|\+ |\| ", line)
        ]
        return [re.sub(" [×x]\\d+$", "", row.rstrip()) for row in rows if "add" not in row]

    text = str(explorer.summary(model, size, **options))
    assert read_names(text) == read_names(str(torchinfo.summary(model, size, **options)))
    assert text.isascii() == ("ascii_only" in settings)


def test_columns_are_at_least_as_wide_as_asked(net: Any) -> None:
    narrow, wide = (str(explorer.summary(net, (3, 8), col_width=width, verbose=0)) for width in (None, 30))
    heads = [next(line for line in text.splitlines() if "Param #" in line) for text in (narrow, wide)]
    ends = [head.index("Mult-Adds") - head.index("Param #") for head in heads]
    assert ends[0] < 30 <= ends[1]
    assert [line.split() for line in narrow.splitlines()] == [line.split() for line in wide.splitlines()]
    with pytest.raises(Misuse, match="give values, each 'ascii_only'"):
        explorer.summary(net, (3, 8), row_settings=("names",))  # type: ignore[arg-type]


def test_inputs_are_sizes_with_types_or_data_with_keywords(torch: Any) -> None:
    class Masked(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.fc = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 2)

        def forward(self, ids: Any, scale: Any = None, twice: bool = False) -> Any:
            result = self.fc(self.embed(ids) if scale is None else self.embed(ids) * scale)
            return self.fc(torch.cat([result, result], -1)) if twice else result

    model = Masked()
    by_size = explorer.count(model, (2, 5), dtypes=[torch.long])
    assert by_size.macs == 2 * 5 * 4 * 2
    assert explorer.summary(model, (5,), batch_dim=0, dtypes=[torch.long], verbose=0).total_mult_adds == 40
    ids = torch.zeros(2, 5, dtype=torch.long)
    assert explorer.count(model, input_data=ids, scale=torch.ones(1), twice=True).macs == 2 * by_size.macs
    assert explorer.count(model, input_data={"ids": ids}, scale=torch.ones(1)).macs == by_size.macs
    with Session(model, inputs=(ids,), kwargs={"twice": True}) as session:
        assert session.info().totals.macs == 2 * by_size.macs


def test_a_model_without_known_inputs_has_its_parameters_alone(torch: Any) -> None:
    class Unknown(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(6, 3)

        def forward(self, a: Any, b: Any) -> Any:
            return self.fc(a["x"]) + b.sum()

    table = explorer.summary(Unknown(), verbose=0)
    assert (table.total_params, table.total_mult_adds) == (21, None)
    assert [layer.path for layer in table.layers] == ["fc"]
    assert "input_size" in str(table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": (1, "x")}, "input_size: 'x' is not a size"),
        ({"input_size": (3, 8), "input_data": 1}, "leave one out"),
        ({"input_size": (3, 8), "col_names": ("num_parms",)}, "there is no column 'num_parms'"),
        ({"input_size": (3, 8), "depth": 0}, r"summary\(depth\): 0 cannot be taken"),
        ({"input_size": (3, 8), "mode": "test"}, r"summary\(mode\): 'test' cannot be taken"),
        ({"input_size": (3, 8), "device": "gpu"}, "knows no device 'gpu'"),
        ({"input_size": (3, 8), "dtypes": []}, None),
        ({"input_size": [(3, 8), (3, 8)], "dtypes": ["float32"]}, "1 types for 2 inputs"),
        ({"input_size": (8,), "batch_dim": 3}, "no position 3 for a batch"),
        ({"input_size": (3, 8), "dtypes": ["bfloat16"]}, "dtypes: 'bfloat16' is not a type of torch"),
        ({"input_size": (3, 8), "model": 7}, "neither a path, a name nor an nn.Module"),
    ],
)
def test_a_wrong_argument_of_summary_is_one_line(
    net: Any, options: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert explorer.summary(net, **options, verbose=0).total_params
        return
    with pytest.raises(Misuse, match=message) as error:
        explorer.summary(**{"model": net, **options})
    assert "\n" not in str(error.value)


def test_a_file_is_counted_and_summarized_by_its_name() -> None:
    counts = explorer.count(LENET)
    assert repr(counts).startswith("Counts(macs=416520, params=61706, flops=833040, ")
    assert "\n" not in repr(counts)
    assert explorer.count(LENET, (4, 1, 28, 28)).macs == 4 * 416_520
    assert explorer.summary(LENET, verbose=0).total_mult_adds == 416_520


def test_a_summary_is_a_tree_that_folds_without_a_script(net: Any) -> None:
    fragment = explorer.summary(net, (3, 8), depth=1, verbose=0)._repr_html_()
    assert fragment is not None
    tags = Tags(fragment)
    assert tags.unbalanced == []
    assert tags.seen.count("details") == 1
    assert "<details><summary" in fragment, "closed below the first level"
    deep = explorer.summary(net, (3, 8), depth=2, verbose=0)._repr_html_()
    assert "<details open><summary" in str(deep)
    assert not {"script", "html", "body"} & set(tags.seen)


def test_names_in_html_are_text(torch: Any) -> None:
    class Evil(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * 2

    net = torch.nn.Sequential()
    net.add_module("<img src=x onerror=alert(1)>", Evil())
    fragment = explorer.summary(net, (3, 8), verbose=0)._repr_html_()
    assert fragment is not None
    assert "img" not in Tags(fragment).seen
    assert "&lt;img" in fragment


QUESTIONS = {
    "info": lambda session: session.info(),
    "analysis": lambda session: session.analysis(),
    "layers": lambda session: session.layers(flat=True, sort="macs"),
    "layer": lambda session: session.analysis().layers[0],
    "memory": lambda session: session.memory(),
    "training": lambda session: session.training(),
    "plan": lambda session: session.plan(TileSpec()),
    "split": lambda session: session.split(SplitSpec(stages=2)),
    "weights": lambda session: session.weights(),
    "history": lambda session: session.history(),
    "nodes": lambda session: session.nodes(),
    "connections": lambda session: session.connections(1),
    "op": lambda session: session.ops()[0],
    "totals": lambda session: session.info().totals,
}


@pytest.fixture(scope="module")
def lenet() -> Any:
    with Session(LENET) as session:
        session.open()
        yield session


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_answer_has_one_line_and_a_page_for_a_cell(question: str, lenet: Session) -> None:
    fact = QUESTIONS[question](lenet)
    text = repr(fact)
    assert text.startswith(f"{type(fact).__name__}(")
    assert len(text) < 600
    assert "\n" not in text
    tags = Tags(fact._repr_html_())
    assert tags.unbalanced == []
    assert {"div", "style"} <= set(tags.seen)
    assert len(tags.seen) > 10


def test_a_cell_shows_the_line_of_an_answer_without_jinja2(
    lenet: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert lenet.info()._repr_html_() is None
    assert lenet._repr_html_() is None
    assert "416,520" in repr(lenet)


def test_every_record_of_facts_is_a_fact_and_every_table_names_its_rows() -> None:
    modules = [
        importlib.import_module(m.name) for m in pkgutil.walk_packages(facts.__path__, "explorer.facts.")
    ]
    records = {
        kind
        for module in (facts, *modules)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Struct) and kind.__module__ == module.__name__
    }
    assert len(records) > 200
    assert [kind for kind in records if not issubclass(kind, (Fact, Spec))] == []
    tables = {kind for kind in records if issubclass(kind, TableFact)}
    assert len(tables) > 30
    assert [kind for kind in tables if kind.ROWS not in kind.__struct_fields__] == []
    assert set(list_offers("blocks")) <= {kind.__name__ for kind in records}


def test_the_result_of_a_tiling_shows_its_proof_in_a_cell(tmp_path: Path) -> None:
    with Session(LENET) as session:
        assert repr(session) == f"<Session of '{LENET}', not analyzed yet>"
        assert session._repr_html_() is None
        result = session.tile(TileSpec(tile=(64, 64, 64)), output=str(tmp_path / "tiled.onnx"))
        fragment = result._repr_html_()
        assert fragment is not None
        assert "equal within rounding" in fragment
        assert "tiled.onnx" in fragment
        session.info()
        assert re.fullmatch(
            r"<Session of '.*', state 1 of 1: .*, 416,520 MACs, [\d,]+ parameters>", repr(session)
        )
        assert "64x64x64" in str(session._repr_html_())


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_rows_become_a_data_frame(library: str, lenet: Session) -> None:
    pytest.importorskip(library)
    frame = lenet.analysis().to_frame(library)
    macs = list(frame["macs"])
    groups = list(frame["group"])
    assert sum(value for value, group in zip(macs, groups, strict=True) if not group) == 416_520
    assert list(lenet.layers("op:Conv", ["macs"], flat=True).to_frame(library)["macs"]) == [117_600, 240_000]
    for fact in (lenet.memory(), lenet.plan(TileSpec()), lenet.weights(), lenet.training()):
        assert len(fact.to_frame(library)) == len(getattr(fact, type(fact).ROWS))


def test_without_a_library_of_frames_the_error_says_what_to_install(
    lenet: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        MissingExtra, match=r"Analysis\.to_frame: this needs pandas or polars.*pip install pandas"
    ):
        lenet.analysis().to_frame()
    with pytest.raises(MissingExtra, match="polars is not installed; type: pip install polars"):
        lenet.analysis().to_frame("polars")
    with pytest.raises(Misuse, match="no data frames of 'arrow'; choose from: pandas, polars"):
        lenet.analysis().to_frame("arrow")  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        lenet.info().to_frame()  # type: ignore[attr-defined]


def test_a_row_of_layers_has_the_users_own_module(net: Any) -> None:
    with Session(net, input_shapes={"": (None, (3, 8))}) as session:
        table = session.layers()
        assert [row.module for row in table] == [net[0], net[1], net[1][0], net[1][1], net[2]]
        assert table[2].module is net[1][0]
        assert table[2].macs == 3 * 8 * 16
        assert pickle.loads(pickle.dumps(table))[2].module is None
        assert explorer.to_json(table).keys() >= {"layers"}
        assert "modules" not in explorer.to_json(table)
    with Session(LENET) as session:
        assert session.layers()[1].module is None


@pytest.mark.slow
def test_stages_are_modules_that_give_the_modules_outputs(torch: Any, net: Any) -> None:
    x = torch.rand(3, 8)
    before = {name: (p.data_ptr(), p.clone()) for name, p in net.named_parameters()}
    with Session(net, inputs=(x,)) as session:
        pipeline, fact = session.split_module(SplitSpec(stages=2), devices=("cpu",))
        assert fact.exact is True
        assert len(pipeline.stages) == len(fact.stages) == 2
        assert all(isinstance(stage, torch.nn.Module) for stage in pipeline.stages)
        net.eval()
        with torch.no_grad():
            assert torch.equal(pipeline(x), net(x))
            next(pipeline.parameters()).add_(1)
        with pytest.raises(Misuse, match="3 devices for 2 stages"):
            session.split_module(SplitSpec(stages=2), devices=("cpu",) * 3)
        with pytest.raises(Misuse, match=r"torch cannot use the device 'cuda:99'|gpu"):
            session.split_module(SplitSpec(stages=2), devices=("cuda:99",))
    for name, parameter in net.named_parameters():
        address, values = before[name]
        assert parameter.data_ptr() == address
        assert torch.equal(parameter, values), "the stages have weights of their own"


@pytest.mark.slow
def test_stages_take_the_arguments_by_their_names(torch: Any) -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: Any, scale: float = 1.0, *, shift: Any, gain: Any, mask: Any = None) -> Any:
            inner = torch.relu(self.first(x) * scale - 3 * shift)
            return self.last(inner * gain if mask is None else inner * mask)

    net, (x, shift, gain) = Scaled().eval(), torch.rand(3, 2, 4)
    with Session(net, inputs=(x, 2.0), kwargs={"gain": gain, "shift": shift}) as session, torch.no_grad():
        pipeline, fact = session.split_module(SplitSpec(stages=2))
        assert fact.exact is True
        expected = net(x, 2.0, shift=shift, gain=gain)
        assert torch.equal(pipeline(x, 2.0, shift=shift, gain=gain), expected)
        assert torch.equal(pipeline(gain=gain, scale=2.0, shift=shift, x=x, mask=None), expected)
        with pytest.raises(Misuse, match="scale: the module was cut for another value"):
            pipeline(x, 3.0, shift=shift, gain=gain)
        with pytest.raises(Misuse, match="mask: the module was cut for another value"):
            pipeline(x, 2.0, shift=shift, gain=gain, mask=gain)
        with pytest.raises(TypeError, match="missing a required"):
            pipeline(x, 2.0, shift=shift)


@pytest.mark.slow
def test_a_graph_has_no_stages_that_are_modules() -> None:
    pytest.importorskip("torch")
    with Session(LENET) as session, pytest.raises(Misuse):
        session.split_module(SplitSpec(stages=2))


def test_a_progress_bar_takes_the_progress_of_a_job(lenet: Session) -> None:
    with explorer.progress_bar() as bar:
        assert lenet.analysis(on_progress=bar).layers
        bar(explorer.facts.Progress("counting", 1, 2))


def test_the_mode_decides_which_layers_run(torch: Any) -> None:
    class Auxiliary(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
            self.fc, self.aux = torch.nn.Linear(8, 4), torch.nn.Linear(8, 2)
            self.spare = torch.nn.Linear(5, 5)

        def forward(self, x: Any) -> Any:
            x = self.drop(self.norm(x))
            return (self.fc(x), self.aux(x)) if self.training else self.fc(x)

    net = Auxiliary().eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert explorer.summary(net, (3, 8), verbose=0).total_mult_adds == 3 * 8 * 4
    trained = explorer.summary(net, (3, 8), mode="train", verbose=0)
    assert trained.total_mult_adds == 3 * 8 * (4 + 2)
    assert trained.totals.coverage == 1
    assert trained.info.assumptions["mode"] == "train"
    spare = next(layer for layer in trained.layers if layer.path == "spare")
    assert spare.reason == "it does not run on these inputs in training mode"
    assert not net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with pytest.raises(Misuse, match=r"only an nn\.Module has a training mode"):
        explorer.summary(LENET, mode="train")


def test_a_summary_without_a_shape_names_the_input_that_lacks_it(torch: Any) -> None:
    class Pair(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(9, 4)

        def forward(self, picture: Any, labels: Any) -> Any:
            return picture @ self.table(labels).T

    text = str(explorer.summary(Pair(), input_size=(2, 4), verbose=0))
    assert "the shape of the input 'labels' is not known (its inputs: picture, labels)" in text
    assert "a list with one shape for each input" in text
    assert re.search(r"Input size +\?$", text, re.MULTILINE), "unknown is not 0"
    assert "Total mult-adds       72" in re.sub(
        " +", lambda gap: "       " if len(gap[0]) > 1 else " ",
        str(explorer.summary(Pair(), input_size=[(2, 4), (9,)], verbose=0)),
    )  # fmt: skip
