"""The closed forms of what operators return: they say what torch says, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from explorer.engine.costs.aten.meta_shapes import RULES, SAME, compute_dense_strides  # noqa: E402

A = torch.ops.aten
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
SIZES = st.lists(st.integers(1, 5), min_size=0, max_size=5)


def meta(shape: Any, dtype: Any = torch.float32, order: int = 0) -> Any:
    """A tensor on the meta device; `order` 1 is channels last (or transposed), 2 every second element."""
    tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
    if order == 1 and len(shape) == 4:
        return tensor.to(memory_format=torch.channels_last)
    if order == 1 and len(shape) > 1:
        return torch.empty((*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device="meta").mT
    if order == 2 and shape:
        return torch.empty((*shape[:-1], 2 * shape[-1]), dtype=dtype, device="meta")[..., ::2]
    return tensor


def described(out: Any) -> list[Any]:
    parts = out if isinstance(out, (tuple, list)) else (out,)
    return [(tuple(t.shape), tuple(t.stride()), t.dtype) for t in parts]


def says_what_torch_says(func: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the rule answered; then torch must have answered the same."""
    rule = RULES[func]
    ours = rule(*args, **kwargs)
    if ours is None:
        return False
    with torch.no_grad():
        out = func(*args, **kwargs)
    if ours == SAME:
        assert out is args[0]
        return True
    assert [(tuple(s), tuple(t), d) for s, t, d in ours] == described(out)
    return True


@pytest.mark.slow
@given(SIZES)
def test_dense_strides_are_torchs(shape: list[int]) -> None:
    assert compute_dense_strides(shape) == torch.empty(shape, device="meta").stride()


def test_dense_strides_around_nothing() -> None:
    for shape in ((0,), (2, 0, 3), (0, 0), ()):
        assert compute_dense_strides(shape) == torch.empty(shape, device="meta").stride()


POINTWISE = [f for f, rule in RULES.items() if rule.__name__ in ("_pointwise", "_infer_in_place")]
assert any(str(f).endswith("_.default") for f in POINTWISE), "operators in place have a rule of their own"
SECOND = {"pow": (2,), "rsub": (1,), "fill_": (0.5,), "clamp": (0, 6), "clamp_": (0.0, 6.0)}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("func", POINTWISE, ids=str)
@settings(max_examples=8, deadline=None)
@given(SIZES, DTYPES, st.integers(0, 2))
def test_pointwise(func: Any, shape: list[int], dtype: Any, order: int) -> None:
    x = meta(shape, dtype, order)
    packet = func._schema.name.partition("::")[2]
    rest = SECOND.get(packet, (3,) if func._overloadname == "Scalar" else ())
    answered = says_what_torch_says(func, x, *rest)
    assert answered or not dtype.is_floating_point or order


BINARY = [f for f, rule in RULES.items() if rule.__name__ in ("_binary", "_binary_in_place")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("func", BINARY, ids=str)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_two_tensors_of_all_shapes_that_fit(func: Any, data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    other = [1 if data.draw(st.booleans()) else d for d in shape[data.draw(st.integers(0, len(shape))) :]]
    x = meta(shape, data.draw(DTYPES), data.draw(st.integers(0, 2)))
    y = meta(other, data.draw(DTYPES), data.draw(st.integers(0, 2)))
    if func._schema.is_mutable:
        if torch.promote_types(x.dtype, y.dtype) != x.dtype or not x.is_floating_point():
            return
        says_what_torch_says(func, x, y)
    else:
        says_what_torch_says(func, x, y)
        says_what_torch_says(func, y, x)
    assert says_what_torch_says(func, meta(shape), meta(shape))
    assert says_what_torch_says(func, meta(shape), 2)


def test_what_does_not_fit_is_left_to_torch() -> None:
    assert RULES[A.add.Tensor](meta((2, 3)), meta((4,))) is None
    assert RULES[A.add_.Tensor](meta((3,)), meta((2, 3))) is None
    assert RULES[A.mm.default](meta((2, 3)), meta((2, 3))) is None
    assert RULES[A.bmm.default](meta((2, 3, 4)), meta((1, 4, 5))) is None
    assert RULES[A.addmm.default](meta((7,)), meta((2, 3)), meta((3, 4))) is None
    assert RULES[A.cat.default]([meta((2, 3)), meta((2, 4))], 0) is None
    assert RULES[A.mean.dim](meta((2, 3)), [5]) is None
    assert RULES[A._softmax.default](meta((2, 3)), 2, False) is None
    convolution = RULES[A.convolution.default]
    x, plain = meta((1, 4, 8, 8)), ([1, 1], [0, 0], [1, 1], False, [0, 0])
    assert convolution(x, meta((6, 3, 3, 3)), None, *plain, 1) is None
    assert convolution(x, meta((6, 4, 9, 9)), None, *plain, 1) is None
    assert convolution(x, meta((6, 4, 3, 3)), meta((5,)), *plain, 1) is None
    assert convolution(x, meta((6, 4, 3, 3), torch.float64), None, *plain, 1) is None
    assert convolution(x, meta((6, 4, 3, 3)), meta((6,)), *plain, 1) is not None


def test_a_tensor_with_values_is_left_to_torch() -> None:
    assert RULES[A.relu.default](torch.zeros(3)) is None
    assert RULES[A.add.Tensor](meta((3,)), torch.zeros(3)) is None


@settings(max_examples=90, deadline=None)
@given(st.data())
def test_convolution(data: Any) -> None:
    rank, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    channels, filters = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    stride, padding, dilation = ([data.draw(st.integers(low, 3)) for _ in range(rank)] for low in (1, 0, 1))
    sizes = [gap * (k - 1) + data.draw(st.integers(1, 5)) for k, gap in zip(kernel, dilation, strict=True)]
    order = data.draw(st.integers(0, 2))
    x = meta((data.draw(st.integers(1, 3)), channels, *sizes), order=order)
    weight = meta((filters, channels // groups, *kernel), order=data.draw(st.integers(0, 2)))
    bias = meta((filters,)) if data.draw(st.booleans()) else None
    transposed = data.draw(st.booleans())
    if transposed:
        weight = meta((channels, filters // groups, *kernel))
    says_what_torch_says(
        A.convolution.default, x, weight, bias, stride, padding, dilation, transposed, [0] * rank, groups
    )
    weight = meta((filters, channels // groups, *kernel))
    assert order or says_what_torch_says(
        A.convolution.default, x, weight, bias, stride, padding, dilation, False, [0] * rank, groups
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), DTYPES, st.integers(0, 2), st.booleans())
def test_normalisations(shape: list[int], dtype: Any, order: int, affine: bool) -> None:
    if not dtype.is_floating_point:
        return
    x = meta(shape, dtype, order)
    vector = meta(shape[1:2], dtype) if affine else None
    wide = dtype in (torch.float32, torch.float64)
    mean, variance = meta(shape[1:2], dtype), meta(shape[1:2], dtype)
    done = says_what_torch_says(
        A.native_batch_norm.default, x, vector, vector, mean, variance, False, 0.1, 1e-5
    )
    assert done == (wide and x.stride() == compute_dense_strides(shape))
    assert RULES[A.native_batch_norm.default](x, None, None, None, None, True, 0.1, 1e-5) is None
    last = meta(shape[-1:], dtype) if affine else None
    says_what_torch_says(A.native_layer_norm.default, x, shape[-1:], last, last, 1e-5)
    both = meta(shape[-2:], dtype) if affine else None
    says_what_torch_says(A.native_layer_norm.default, x, shape[-2:], both, both, 1e-5)
    cells = x[0, 0].numel()
    says_what_torch_says(
        A.native_group_norm.default, x, vector, vector, shape[0], shape[1], cells, shape[1], 1e-5
    )


@settings(max_examples=40, deadline=None)
@given(st.tuples(*[st.integers(1, 4)] * 4), DTYPES, st.integers(0, 2), st.integers(0, 2))
def test_products(sizes: tuple[int, ...], dtype: Any, first: int, second: int) -> None:
    b, m, k, n = sizes
    if not dtype.is_floating_point:
        return
    x, y = meta((m, k), dtype, first), meta((k, n), dtype, second)
    assert says_what_torch_says(A.mm.default, x, y)
    assert says_what_torch_says(A.addmm.default, meta((n,), dtype), x, y)
    assert says_what_torch_says(A.addmm.default, meta((m, n), dtype), x, y, beta=2)
    assert says_what_torch_says(A.bmm.default, meta((b, m, k), dtype, first), meta((b, k, n), dtype, second))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_reduces_joins_and_copies(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    x = meta(shape, data.draw(DTYPES), data.draw(st.integers(0, 2)))
    dims = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), max_size=3))
    if x.is_floating_point() and len({d % len(shape) for d in dims}) == len(dims):
        says_what_torch_says(A.mean.dim, x, dims, data.draw(st.booleans()))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    if x.is_floating_point():
        says_what_torch_says(A._softmax.default, x, dim, False)
        says_what_torch_says(A._safe_softmax.default, x, dim)
    other = list(shape)
    other[dim] = data.draw(st.integers(1, 4))
    says_what_torch_says(A.cat.default, [x, meta(other, x.dtype, data.draw(st.integers(0, 2)))], dim)
    says_what_torch_says(A.clone.default, x)
    if x.dim() > 1:
        says_what_torch_says(A.tril.default, x, data.draw(st.integers(-2, 2)))
        says_what_torch_says(A.triu.default, x)
        assert says_what_torch_says(A.tril.default, meta(shape, torch.bool))
    number, mask = meta((), x.dtype), meta(shape, torch.bool, data.draw(st.integers(0, 2)))
    says_what_torch_says(A.where.self, mask, number, number)
    assert says_what_torch_says(A.where.self, meta(shape, torch.bool), number, number)
    shape = data.draw(st.sampled_from([shape, [d + 1 for d in shape], [1, *(d + 1 for d in shape)]]))
    turned = meta(shape).permute(data.draw(st.permutations(range(len(shape)))))
    says_what_torch_says(A.mul.Scalar, turned, 2)
    says_what_torch_says(A.rsqrt.default, turned)
    assert says_what_torch_says(A.mul.Scalar, meta((1, 3, 2, 4)).transpose(1, 3), 2)
    assert says_what_torch_says(A.clone.default, x, memory_format=torch.contiguous_format)
    table, indices = meta((7, 3), data.draw(DTYPES)), meta(shape, torch.int64, data.draw(st.integers(0, 2)))
    says_what_torch_says(A.embedding.default, table, indices)


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.integers(1, 5)] * 6), st.integers(0, 2))
def test_resampling(sizes: tuple[int, ...], order: int) -> None:
    b, c, h, w, p, q = sizes
    x = meta((b, c, h, w), order=order)
    says_what_torch_says(A.upsample_bilinear2d.default, x, [p, q], False, None, None)
    says_what_torch_says(A.upsample_bicubic2d.default, x, [p, q], True, None, None)
    says_what_torch_says(A.upsample_nearest2d.default, x, [p, q], None, None)
    says_what_torch_says(A.grid_sampler_2d.default, x, meta((b, p, q, 2)), 0, 0, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("left", "right", "ends"),
    [
        ((8, 16), (3, 6, 16), [2, 5, 8]),
        ((3, 4, 16), (6, 16), [1, 3, 6]),
        ((3, 4, 16), (3, 6, 16), None),
    ],
)
def test_a_grouped_product_has_the_sizes_that_the_kernel_of_the_cpu_gives_it(
    left: Any, right: Any, ends: Any, dtype: Any
) -> None:
    """torch's meta kernel refuses float32 up to 2.14; the CPU's takes it from 2.9 on."""
    if not hasattr(A, "_grouped_mm"):
        pytest.skip("torch before 2.9")
    func = A._grouped_mm.default
    for device in ("cpu", "meta"):
        x, y = (torch.ones(shape, dtype=dtype, device=device) for shape in (left, right))
        offsets = None if ends is None else torch.tensor(ends, dtype=torch.int32, device=device)
        if device == "cpu":
            out = described(func(x, y.mT, offsets))
        else:
            assert [(tuple(s), tuple(t), d) for s, t, d in RULES[func](x, y.mT, offsets)] == out


def test_a_grouped_product_that_does_not_fit_is_left_to_torch() -> None:
    rule = RULES[A._grouped_mm.default]
    offsets = torch.empty(3, dtype=torch.int32, device="meta")
    assert rule(meta((8, 16)), meta((3, 8, 16)), offsets) is None
    assert rule(meta((8, 16)), meta((4, 16, 8)), offsets) is None
    assert rule(meta((8, 16)), meta((3, 16, 8))) is None
    assert rule(meta((8, 16)), meta((3, 16, 8), torch.bfloat16), offsets) is None
