"""Small modules that the tests of conversion write as files, and open again."""

from __future__ import annotations

import torch
from torch import nn


class Small(nn.Module):
    """An image to ten classes, whatever its size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc = nn.Linear(4, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.conv(image)).mean((2, 3)))


class Words(nn.Module):
    """Two inputs, one of them rows of a table; three outputs in a dictionary, one of them integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.rnn = nn.GRU(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        states, last = self.rnn(x + self.table(ids))
        return {"states": states, "last": last, "best": states.argmax(-1)}


class Counting(nn.Module):
    """Multiplies with its batch size, which a trace takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * float(int(x.shape[0]))


class Deciding(nn.Module):
    """Takes another way for other values, which a trace does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.fc(x)
        return -x


class Unwritable(nn.Module):
    """Uses an operator that ONNX has not."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(self.fc(x))[1]


class Masked(nn.Module):
    """Takes an input that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.fc(x)
