"""TorchScript code that was written to hurt: lists of lists of lists, loops for ever, constants without end.

The code of a real file is replaced; what it computes is found out by running it on shapes, and that must
come to an end whatever it says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer.session import Session
from tests.fuzz.limits import attempt, bounded_memory
from tests.fuzz.mutators import unzip, zipped
from tests.fuzz.targets import TARGETS

torch = pytest.importorskip("torch")

HOSTILE = {
    "lists of lists": ["l = [x]", "for i in range(40):", "  l = [l, l]", "return l"],
    "a list in a list in a list": ["l = [x]", "for i in range(5000):", "  l = [l]", "return l"],
    "a list of itself": ["l = [x]", "_0 = torch.append(l, l)", "return l"],
    "lists that are compared": ["a = [1]", "b = [1]", "for i in range(40):", "  a = [a, a]", "  b = [b, b]",
                                "return torch.eq(a, b)"],
    "lists that are printed": ["a = [1]", "for i in range(40):", "  a = [a, a]",
                               'return torch.len(torch.format("{}", a))'],
    "calling itself": ["return (self).forward(x, turns, )"],
    "a loop without an end": ["while True:", "  pass", "return x"],
    "a text that grows": ['t = "ab"', "for i in range(99999):", "  t = torch.add(t, t)", "return x"],
    "a list that grows": ["l = [1]", "for i in range(99999999):", "  l = torch.add(l, [1])", "return x"],
    "a number that grows": ["n = 3", "for i in range(99999999):", "  n = torch.mul(n, n)", "return x"],
    "a power": ["return torch.pow(99999, 99999999)"],
    "a constant repeated": ["return torch.repeat(torch.tensor(1.), [100000, 100000])"],
    "a sum over a constant": ["a = torch.expand(torch.tensor([1]), [1000000000000])", "return torch.sum(a)"],
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", HOSTILE)
def test_code_that_hurts_comes_to_an_end(kind: str, tmp_path: Path) -> None:
    entries = unzip(next(TARGETS["torchscript"].seeds()))
    assert entries is not None
    path = tmp_path / "m.pt"
    changed = []
    for name, content in entries:
        if name.endswith(".py") and b"class Net" in content:
            head = content.decode().partition("  def forward")[0]
            lines = "".join(f"    {line}\n" for line in HOSTILE[kind])
            opening = "  def forward(self: N,\n    x: Tensor,\n    turns: int=2) -> Tensor:\n"
            content = f"{head}{opening}{lines}".encode()
        changed.append((name, content))
    assert changed != entries
    path.write_bytes(zipped(changed))

    def run(name: str) -> None:
        with Session(name, input_shapes={"x": (None, (1, 2))}) as session:
            session.open()
            session.memory()

    with bounded_memory():
        find = attempt(run, str(path), 20.0)
    assert find is None, find.text
