"""Layers answered from what a layer like them did: the same facts, and only where nothing can differ."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer.engine.costs.aten import meta_cache  # noqa: E402
from explorer.engine.costs.torch import layer_cache, tracer  # noqa: E402
from explorer.engine.costs.torch.analyse import examine_module  # noqa: E402
from explorer.engine.formats.torch_module.meta_copy import copy_without_values  # noqa: E402
from explorer.facts import Analysis  # noqa: E402


@pytest.fixture(autouse=True)
def cold() -> None:
    meta_cache.clear_answers()
    layer_cache.forget()


def meta(make: Any, *shapes: Any, dtype: Any = None) -> tuple[Any, list[Any]]:
    with torch.device("meta"):
        return make(), [torch.empty(shape, dtype=dtype) for shape in shapes]


def analysed(make: Any, *shapes: Any, dtype: Any = None) -> Analysis:
    model, inputs = meta(make, *shapes, dtype=dtype)
    return examine_module(model, inputs).analysis


def without_memory(monkeypatch: Any, make: Any, *shapes: Any, dtype: Any = None) -> Analysis:
    """The analysis with every layer run and every operator asked of torch."""
    with monkeypatch.context() as patch:
        patch.setattr(layer_cache, "is_enabled", lambda: False)
        patch.setattr(meta_cache, "store_answer", lambda *args: None)
        patch.setattr(meta_cache, "compute_result", lambda *args: None)
        return analysed(make, *shapes, dtype=dtype)


def operators_run(monkeypatch: Any, model: Any, *inputs: Any) -> int:
    """How many operators the dispatch mode saw."""
    seen = 0
    dispatch = tracer._Watch.dispatch

    def counted(*args: Any) -> Any:
        nonlocal seen
        seen += 1
        return dispatch(*args)

    with monkeypatch.context() as patch:
        patch.setattr(tracer._Watch, "dispatch", counted)
        examine_module(model, list(inputs))
    return seen


class Mixed(nn.Module):
    """Layers that make, view, update in place, share memory and are called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding="same")
        self.more = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, groups=g) for g in (1, 2, 8, 1))
        self.norm = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.act = nn.ReLU(inplace=True)
        self.drop, self.same, self.flat = nn.Dropout(), nn.Identity(), nn.Flatten(2)
        self.attention = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
        self.last = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.last.weight
        self.lstm = nn.ModuleList(nn.LSTM(8, 8, batch_first=True) for _ in range(2))
        self.pool, self.soft = nn.MaxPool2d(2, return_indices=True), nn.Softmax(-1)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        for layer in self.more:
            x = self.act(self.norm[0](layer(x))) + self.norm[1](x)
        x, places = self.pool(x)
        y = self.flat(self.drop(self.same(x))).transpose(1, 2)
        for layer in self.attention:
            y = layer(y, y, y, need_weights=False)[0]
        z, weights = self.attention[0](y, y[:, :3], y[:, :3])
        for layer in self.lstm:
            z, _ = layer(z)
        return self.soft(self.tied(self.last(z[:, 1:]))), places, weights


def test_the_facts_are_the_same_with_and_without_memory(monkeypatch: Any) -> None:
    plain = without_memory(monkeypatch, Mixed, (2, 3, 8, 8))
    first = analysed(Mixed, (2, 3, 8, 8))
    again = analysed(Mixed, (2, 3, 8, 8))
    assert plain.layers
    assert plain == first == again


class ReadsAParameter(nn.Module):
    """Equal layers: the first reads a parameter of the model, the second an activation of the same shape."""

    def __init__(self, *, buffer: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        if buffer:
            self.register_buffer("table", torch.empty(5, 12))
        else:
            self.table = nn.Parameter(torch.empty(5, 12))

    def forward(self, x: Any) -> Any:
        table = self.table.expand(len(x), -1, -1)
        return self.second(torch.relu(torch.bmm(x, self.first(table))))


@pytest.mark.parametrize("buffer", [False, True])
def test_a_layer_that_reads_an_activation_is_not_answered_by_one_that_read_a_parameter(
    monkeypatch: Any, buffer: bool
) -> None:
    def make() -> Any:
        return ReadsAParameter(buffer=buffer)

    plain = without_memory(monkeypatch, make, (1, 5, 5))
    assert analysed(make, (1, 5, 5)) == plain
    second = next(layer for layer in plain.layers if layer.path == "second")
    assert second.bytes_read - second.weight_bytes_read == 5 * 12 * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "mobilenet_v3_small", "swin_t"])
def test_the_facts_of_real_models_are_the_same(monkeypatch: Any, name: str) -> None:
    torchvision = pytest.importorskip("torchvision")

    def make() -> Any:
        return torchvision.models.get_model(name, weights=None)

    plain = without_memory(monkeypatch, make, (1, 3, 224, 224))
    assert plain == analysed(make, (1, 3, 224, 224)) == analysed(make, (1, 3, 224, 224))


def test_a_layer_like_one_that_ran_is_not_run_again(monkeypatch: Any) -> None:
    def make() -> Any:
        return nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(5)), nn.ReLU(), nn.Flatten())

    first, (x,) = meta(make, (1, 8, 16, 16))
    assert operators_run(monkeypatch, first, x) == 3
    second, (x,) = meta(make, (1, 8, 16, 16))
    assert operators_run(monkeypatch, second, x) == 0


def test_other_settings_are_another_layer() -> None:
    def macs(**settings: Any) -> int | None:
        return analysed(lambda: nn.Sequential(nn.Conv2d(8, 8, 3, **settings)), (1, 8, 9, 9)).info.totals.macs

    assert [macs(), macs(padding=1), macs(groups=8), macs(stride=2), macs(dilation=2)] == [
        8 * 49 * 72, 8 * 81 * 72, 8 * 49 * 9, 8 * 16 * 72, 8 * 25 * 72
    ]  # fmt: skip
    shapes = [
        analysed(lambda dim=dim: nn.Sequential(nn.Flatten(dim)), (2, 3, 4)).info.model.outputs[0].shape
        for dim in (0, 1)
    ]
    assert shapes == [(24,), (2, 12)]


def test_a_layer_with_a_hook_runs_and_the_hook_with_it() -> None:
    model, (x,) = meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (1, 4))
    seen = []
    examine_module(model, [x])
    model[1].register_forward_hook(lambda module, args, out: seen.append(out.shape))
    examine_module(model, [x])
    assert seen == [(1, 4)]


def test_a_hook_on_all_modules_runs() -> None:
    model, (x,) = meta(lambda: nn.Sequential(nn.Linear(4, 4)), (1, 4))
    examine_module(model, [x])
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: seen.append(args[0]))
    try:
        examine_module(model, [x])
    finally:
        handle.remove()
    assert seen == [model[0], model]


def test_a_forward_of_ones_own_is_called() -> None:
    model, (x,) = meta(lambda: nn.Sequential(nn.Linear(4, 4)), (1, 4))
    examine_module(model, [x])
    model[0].forward = lambda value: value[:, :2]
    assert examine_module(model, [x]).analysis.info.model.outputs[0].shape == (1, 2)


def test_a_parametrised_layer_does_its_own_work() -> None:
    def make() -> Any:
        return nn.Sequential(nn.Linear(4, 4, bias=False))

    plain = analysed(make, (1, 4))
    odd, (x,) = meta(make, (1, 4))

    class Doubled(nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight @ weight

    torch.nn.utils.parametrize.register_parametrization(odd[0], "weight", Doubled())
    assert (plain.info.totals.macs, examine_module(odd, [x]).analysis.info.totals.macs) == (16, 16 + 64)


def test_what_is_made_in_place_stays_where_it_is() -> None:
    def make(inplace: bool) -> Any:
        return nn.Sequential(*(m for _ in range(4) for m in (nn.Conv2d(4, 4, 1), nn.ReLU(inplace))))

    size = 4 * 4 * 8 * 8
    for _ in range(2):
        assert analysed(lambda: make(True), (1, 4, 8, 8)).info.totals.activation_bytes_peak == 2 * size
    own, shared = (analysed(lambda i=i: make(i), (1, 4, 8, 8)) for i in (False, True))
    assert own.info.totals.activation_bytes_sum == shared.info.totals.activation_bytes_sum


def test_what_follows_a_bound_is_a_bound_also_where_it_was_exact_before() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            exact = self.first(x)
            rows = exact[torch.nonzero(exact[:, 0])[:, 0]]
            return self.second(rows)

    for _ in range(2):
        layers = {layer.path: layer for layer in analysed(Masked, (3, 4)).layers}
        assert (layers["first"].status, layers["second"].status) == ("exact", "bound")


def test_a_model_in_training_mode_is_put_back_and_gives_the_same() -> None:
    model, (x,) = meta(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (1, 3, 8, 8))
    model.train()
    assert examine_module(model, [x]).analysis == examine_module(model.eval(), [x]).analysis
    model.train()
    examine_module(model, [x])
    assert all(module.training for module in model.modules())


def test_the_call_of_modules_is_put_back_whatever_happens() -> None:
    plain = nn.Module.__call__
    model, (x,) = meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4)), (1, 4))
    assert examine_module(model, [x]).analysis.info.totals.macs is not None
    assert nn.Module.__call__ is plain
    assert nn.Sequential(nn.Linear(2, 2))(torch.zeros(1, 2)).shape == (1, 2)


def test_two_threads_see_their_own_model_only() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(width: int) -> tuple[int, int | None]:
        def make() -> Any:
            return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(20)))

        return width, analysed(make, (1, width)).info.totals.macs

    with ThreadPoolExecutor(4) as pool:
        for width, macs in pool.map(work, [3, 5, 7, 9] * 6):
            assert macs == 20 * width * width


def test_the_counter_of_a_normalization_does_not_hinder_it(monkeypatch: Any) -> None:
    """A module that exists keeps the values of its counters in the twin, and they decide nothing."""
    image = torch.empty(1, 8, 4, 4, device="meta")
    twin = copy_without_values(nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(8)).eval())
    assert not twin[0].num_batches_tracked.is_meta
    first = operators_run(monkeypatch, twin[:1], image)
    assert first
    assert operators_run(monkeypatch, twin, image) == 0
