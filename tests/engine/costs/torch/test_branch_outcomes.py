"""Modules that ask tensors for values or branch on them: constants are known, a branch counts as what costs
more, what a router hands out is as much as it has places; from the command line as from an object."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.engine.costs.torch.analyse import examine  # noqa: E402
from explorer.engine.formats.torch_module.loaded_module import LoadedModule  # noqa: E402
from explorer.facts import Info  # noqa: E402

W, E, K, TOKENS = 8, 4, 2, 10
"""Width of every layer; experts, experts of each token, tokens."""


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W)


class EarlyReturn(Base):  # 3 layers
    def forward(self, x: Any) -> Any:
        x = self.a(x)
        if x.sum() > 0:
            return x
        x = self.b(x)
        if x.abs().max().item() > 1e6:
            return x
        return self.c(x)


class Below(Base):
    def forward(self, x: Any) -> Any:
        x = self.a(x)
        if (x > 100).any():
            return x
        return self.b(x)


class NotAll(Base):
    def forward(self, x: Any) -> Any:
        x = self.a(x)
        if not torch.isfinite(x).all():
            return x
        return self.b(x)


class Nested(Base):
    def forward(self, x: Any) -> Any:
        if x.mean() > 0:
            if x.std() > 1:
                return x
            x = self.a(x)
        else:
            if x.std() > 2:
                x = self.b(self.a(x))
        return self.c(x)  # largest: b(a)+c = 3


class WhileBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(5))

    def forward(self, x: Any) -> Any:
        i = 0
        while i < self.n:
            x = self.a(x)
            i += 1
        return x  # 5


class WhileCountdown(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(3))

    def forward(self, x: Any) -> Any:
        n = self.n.clone()
        while n > 0:
            x = self.a(x)
            n -= 1
        return x  # 3


class ListBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.tensor([0, 2, 2, 1]))

    def forward(self, x: Any) -> Any:
        for i in self.order.tolist():
            x = (self.a, self.b, self.c)[i](x)
        return x  # 4


class IndexBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tensor([True, False, True, True]))

    def forward(self, x: Any) -> Any:  # x (4, 8): 3 rows
        return self.a(x[self.keep])


class Sections(Base):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = [torch.tensor(1), torch.tensor(3)]
        self.kw = {"n": torch.tensor(2)}

    def forward(self, x: Any) -> Any:  # 4 rows
        first, _ = x.split([int(s) for s in self.sizes])
        for _ in range(self.kw["n"]):
            first = self.a(first)
        return first  # 2


class Ratio(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ratios", torch.tensor([0.5, 0.25]))

    def forward(self, x: Any) -> Any:  # rows 8: 4+2
        return [self.a(x[: int(len(x) * r)]) for r in self.ratios]


class Repeats(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("times", torch.tensor([1, 2, 3, 0]))

    def forward(self, x: Any) -> Any:  # 4 rows -> 6
        return self.a(x.repeat_interleave(self.times, 0))


class Positions(Base):
    def forward(self, x: Any) -> Any:  # rows 0,2 of 4 -> 2
        p = torch.arange(len(x), device=x.device)
        return self.a(x[p % 2 == 0])


class Layers(Base):
    def __init__(self) -> None:
        super().__init__()
        self.drop = [float(v) for v in torch.linspace(0, 1, 3)]

    def forward(self, x: Any) -> Any:
        for layer, d in zip((self.a, self.b, self.c), self.drop, strict=False):
            if d < 0.9:
                x = layer(x)
        return x  # 2


class Exits(Base):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(W, 2) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        for layer, head in zip((self.a, self.b, self.c), self.heads, strict=False):
            x = layer(x)
            y = head(x)
            if y.softmax(-1).max() > 0.9:
                return y
        return y  # 3*64 + 3*16


class Halting(Base):
    def forward(self, x: Any) -> Any:
        halted = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        for _ in range(4):
            if halted.all():
                break
            x = self.a(x)
            halted = halted | (x.sum(-1) > 1)
        return x  # 4 * rows


class Scale(Base):
    def forward(self, x: Any) -> Any:
        return self.a(x / x.abs().max().item())  # 1, exact


class NonzeroLoop(Base):
    def forward(self, x: Any) -> Any:
        hits = torch.nonzero(x[:, 0] > 0)
        return [self.a(x[i]) for i in hits]  # <= rows


class Marked(Base):
    def forward(self, x: Any) -> Any:
        seen = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        seen[x[:, 0] > 0] = True
        if seen.any():
            return self.a(x[seen])
        return self.b(self.a(x))


class Depth(Base):
    def forward(self, x: Any) -> Any:
        n = int(x[0, 0] * 3)
        for _ in range(n):
            x = self.a(x)
        return x  # assumed


class Checked(Base):
    def forward(self, x: Any) -> Any:
        if torch.isnan(x).any():
            raise ValueError("nan")
        assert x.max() < 1e6
        return self.a(x)  # 1 exact no note


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strides = torch.tensor([8, 16])
        self.convs = nn.ModuleList([nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)])

    def forward(self, x: Any) -> Any:
        return [c(x[..., :: int(s), :: int(s)]) for s, c in zip(self.strides, self.convs, strict=True)]


class Guarded(Base):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(W, 8 * W)

    def forward(self, x: Any) -> Any:
        x = self.a(x)
        return x if x.mean() > 1e6 else self.wide(x)


def _experts(n: int) -> Any:
    return nn.ModuleList(
        [
            nn.Sequential(nn.Linear(W, 2 * W, bias=False), nn.ReLU(), nn.Linear(2 * W, W, bias=False))
            for _ in range(n)
        ]
    )


class Moe(nn.Module):
    """tokens*2*W*2W per choice + router tokens*W*E"""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(W, E, bias=False)
        self.experts = _experts(E)


class Mixtral(Moe):
    def forward(self, x: Any) -> Any:
        w, sel = F.softmax(self.router(x), dim=1).topk(K, dim=-1)
        out = torch.zeros_like(x)
        mask = F.one_hot(sel, num_classes=E).permute(2, 1, 0)
        for e in range(E):
            idx, top = torch.where(mask[e])
            h = self.experts[e](x[None, top].reshape(-1, W)) * w[top, idx, None]
            out.index_add_(0, top, h.to(x.dtype))
        return out


class MixtralHit(Moe):
    def forward(self, x: Any) -> Any:
        w, sel = F.softmax(self.router(x), dim=1).topk(K, dim=-1)
        out = torch.zeros_like(x)
        mask = F.one_hot(sel, num_classes=E).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for e in hit:
            idx, top = torch.where(mask[e].squeeze(0))
            h = self.experts[e](x[None, top].reshape(-1, W)) * w[top, idx, None]
            out.index_add_(0, top, h)
        return out


class SpareColumn(Moe):
    """As DBRX: a mask with a column more than there are experts."""

    def forward(self, x: Any) -> Any:
        w, sel = self.router(x).softmax(-1).topk(K, dim=-1)
        out = torch.zeros_like(x)
        mask = F.one_hot(sel, num_classes=E + 1).permute(2, 1, 0)
        for e in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            e = e[0]
            idx, top = torch.where(mask[e])
            out.index_add_(0, top, self.experts[int(e)](x[top]) * w[top, idx, None])
        return out


class Identities(Moe):
    """As LongCat: some of those that the router chooses from hand on what they are given."""

    def forward(self, x: Any) -> Any:
        _w, sel = self.router(x).topk(K)
        out = torch.zeros_like(x)
        mask = F.one_hot(sel, num_classes=E).permute(2, 1, 0)
        for e in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            _, top = torch.where(mask[int(e)].squeeze(0))
            out.index_add_(0, top, x[top] if int(e) < E // 2 else self.experts[int(e)](x[top]))
        return out


class MaskAny(Moe):
    def forward(self, x: Any) -> Any:
        p = self.router(x).sigmoid()
        _w, sel = torch.topk(p, K)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            m = (sel == e).any(dim=-1)
            if m.any():
                out[m] += expert(x[m])
        return out


class DeepSeek(Moe):
    def forward(self, x: Any) -> Any:
        _w, ids = torch.topk(self.router(x).softmax(-1), k=K, dim=-1, sorted=False)
        cnts = ids.new_zeros((ids.shape[0], len(self.experts)))
        cnts.scatter_(1, ids, 1)
        per = cnts.sum(dim=0)
        idxs = ids.view(-1).argsort()
        srt = x[idxs // ids.shape[1]]
        outs, start = [], 0
        for i, n in enumerate(per.cpu().numpy()):
            end = start + n
            if n == 0:
                continue
            outs.append(self.experts[i](srt[start:end]))
            start = end
        return torch.cat(outs)


class Bincount(Moe):
    def forward(self, x: Any) -> Any:
        _w, ids = self.router(x).topk(K)
        flat = ids.flatten()
        order = flat.argsort()
        ends = flat.bincount(minlength=E).cumsum(0).tolist()
        out, start = [], 0
        for e, end in enumerate(ends):
            rows = order[start:end] // K
            if len(rows):
                out.append(self.experts[e](x[rows]))
            start = end
        return torch.cat(out)


class Switch(Moe):
    def forward(self, x: Any) -> Any:
        _, idx = self.router(x).softmax(-1).max(dim=-1)
        out = x.clone()
        for e in range(E):
            sel = torch.nonzero(idx == e).squeeze(-1)
            out[sel] = self.experts[e](x[sel])
        return out


class SlotLoop(Moe):
    def forward(self, x: Any) -> Any:
        _w, sel = self.router(x).topk(K)
        out = torch.zeros_like(x)
        for k in range(K):
            for e in range(E):
                m = sel[:, k] == e
                if m.sum() == 0:
                    continue
                out[m] += self.experts[e](x[m])
        return out


class UniqueHit(Moe):
    def forward(self, x: Any) -> Any:
        _w, sel = self.router(x).topk(K)
        out = torch.zeros_like(x)
        for e in sel.unique().tolist():
            t, _s = (sel == e).nonzero(as_tuple=True)
            out.index_add_(0, t, self.experts[e](x[t]))
        return out


class Capacity(Moe):
    """As Switch Transformers: no expert takes more than it has room for."""

    def forward(self, x: Any) -> Any:
        mask = F.one_hot(self.router(x).argmax(-1), num_classes=E)
        mask = mask * (torch.cumsum(mask, dim=-2) <= 3)
        out = torch.zeros_like(x)
        for e in torch.greater(mask.sum(0), 0).nonzero():
            (rows,) = torch.where(mask[:, int(e)])
            out.index_add_(0, rows, self.experts[int(e)](x[rows]))
        return out


class Unlike(Moe):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(W, W * (i + 1)) for i in range(E)])

    def forward(self, x: Any) -> Any:
        _, idx = self.router(x).max(dim=-1)
        return [self.experts[e](x[idx == e]) for e in range(E)]


LAYERS: dict[type[nn.Module], tuple[int, float, str]] = {
    WhileBuffer: (1, 5, "exact"),
    WhileCountdown: (1, 3, "exact"),
    ListBuffer: (1, 4, "exact"),
    IndexBuffer: (4, 3, "exact"),
    Sections: (4, 2, "exact"),
    Ratio: (8, 6, "exact"),
    Repeats: (4, 6, "exact"),
    Positions: (4, 2, "exact"),
    Layers: (1, 2, "exact"),
    Strided: (1, 15, "exact"),
    EarlyReturn: (1, 3, "assumed"),
    Below: (1, 2, "assumed"),
    NotAll: (1, 2, "assumed"),
    Nested: (1, 3, "assumed"),
    Guarded: (2, 2 * 9, "assumed"),
    Exits: (1, 3 + 3 * 2 / W, "assumed"),
    Halting: (2, 4 * 2, "assumed"),
    Marked: (4, 4 * 2, "assumed"),
    NonzeroLoop: (4, 4, "bound"),
    Depth: (1, 1, "assumed"),
    Scale: (1, 1, "exact"),
    Checked: (1, 1, "exact"),
}
"""Rows of the input; MACs in products of one row by W x W; status."""

ROUTERS = (Mixtral, MixtralHit, SpareColumn, MaskAny, DeepSeek, Bincount, SlotLoop, UniqueHit)


def both(kind: type[nn.Module], rows: int, shape: tuple[int, ...] | None = None) -> list[Info]:
    """As from the command line, and as from an object."""
    size = shape or (rows, W)
    loaded = LoadedModule(kind.__name__, kind, "random")
    with Session(kind(), inputs=torch.rand(size)) as session:
        return [examine(loaded, input_shapes={"x": (None, size)}).analysis.info, session.info()]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_values_that_are_known_are_used_and_the_larger_branch_is_counted(kind: type[nn.Module]) -> None:
    rows, products, status = LAYERS[kind]
    for info in both(kind, rows, (1, 3, 64, 64) if kind is Strided else None):
        assert (info.totals.macs, info.totals.status) == (products * W * W, status)
        assumed = [note for note in info.model.notes if "counts as" in note or "assumed" in note]
        assert bool(assumed) == (status != "exact"), "an assumption that changes nothing is not a note"


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), TOKENS])
def test_experts_that_do_nothing_make_the_work_depend_on_the_text(rows: int) -> None:
    info = both(Identities, rows)[0]
    assert info.totals.status != "exact"
    assert rows * W * E <= (info.totals.macs or 0) <= rows * (W * E + K * 2 * W * 2 * W)


@pytest.mark.slow
def test_one_token_goes_to_as_many_experts_as_are_chosen() -> None:
    for kind in (MixtralHit, SpareColumn):
        info = both(kind, 1)[0]
        assert (info.totals.macs, info.totals.status) == (W * E + K * 2 * W * 2 * W, "exact")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ROUTERS, ids=lambda kind: kind.__name__)
def test_experts_together_get_what_the_router_hands_out(kind: type[nn.Module]) -> None:
    for info in both(kind, TOKENS):
        expert = 2 * W * 2 * W
        assert info.totals.macs == TOKENS * (W * E + K * expert)
        assert info.totals.status == "exact"
        assert not info.model.notes or "the total of MACs is exact" in info.model.notes[0]


def test_experts_that_cost_differently_are_counted_under_an_assumption_that_is_said() -> None:
    for info in both(Unlike, TOKENS):
        assert info.totals.status == "assumed"
        assert any("are spread evenly" in note for note in info.model.notes)


def test_experts_with_room_for_a_few_get_no_more_than_there_is() -> None:
    for info in both(Capacity, TOKENS):
        assert (info.totals.macs, info.totals.status) == (TOKENS * (W * E + 2 * W * 2 * W), "assumed")


def test_a_branch_that_was_not_counted_says_that_it_may_run() -> None:
    class Either(Base):
        def forward(self, x: Any) -> Any:
            return self.a(x) if x.sum() > 0 else self.b(self.c(x))

    layers = {y.path: y for y in examine(LoadedModule("Either", Either, "")).analysis.layers}
    assert (layers["a"].calls, layers["b"].calls) == (0, 1)
    assert "another value than the assumed one" in layers["a"].reason
    assert layers["a"].status == layers["b"].status == "bound"


def test_what_a_bound_does_not_change_is_exact() -> None:
    """Rows are chosen, worked on, and put back: what follows has its full size again."""

    class Back(Base):
        def forward(self, x: Any) -> Any:
            chosen = x[:, 0] > 0
            out = torch.zeros_like(x)
            out[chosen] = self.a(x[chosen])
            return self.b(out)

    loaded = LoadedModule("Back", Back, "")
    analysis = examine(loaded, input_shapes={"x": (None, (4, W))}).analysis
    layers = {y.path: y.status for y in analysis.layers}
    assert (layers["a"], layers["b"]) == ("bound", "exact")
    assert (analysis.info.totals.macs, analysis.info.totals.status) == (8 * W * W, "bound")


def test_large_tables_of_numbers_take_no_memory_when_a_model_is_built_for_its_values() -> None:
    class Large(Base):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(1 << 20, 1 << 20))
            self.register_buffer("n", torch.tensor(2))

        def forward(self, x: Any) -> Any:
            for _ in range(int(self.n)):
                x = self.a(x)
            return x

    assert examine(LoadedModule("Large", Large, "")).analysis.info.totals.macs == 2 * W * W
