"""Lightning callback: a fit prints and logs the figures of its module, and never fails because of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from explorer.lightning import ExplorerSummary  # noqa: E402


class Net(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A layer of 8 x 4, whose figures are known by hand: 32 MACs of one sample, 36 parameters."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.example_input_array = torch.zeros(2, 8)
        self.fails = fails

    def forward(self, x: Any) -> Any:
        if self.fails and not self.training:
            raise ValueError("no forward")
        return self.layer(x)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(module: Net, folder: Path, callback: ExplorerSummary) -> Path:
    """Train for two steps, and return the file of the logged metrics."""
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 8)), batch_size=2)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        log_every_n_steps=1,
        logger=CSVLogger(folder, name="", version=""),
        callbacks=[callback],
        enable_model_summary=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    trainer.fit(module, data)
    return folder / "metrics.csv"


@pytest.mark.filterwarnings("ignore")
def test_a_fit_prints_and_logs_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = Net()
    metrics = fit(module, tmp_path, ExplorerSummary())
    head, row = metrics.read_text().splitlines()[:2]
    logged = dict(zip(head.split(","), row.split(","), strict=True))
    assert float(logged["explorer/macs"]) == 64
    assert float(logged["explorer/params"]) == 36
    assert float(logged["explorer/coverage"]) == 1
    assert "MACs" in capsys.readouterr().out
    assert module.training


@pytest.mark.filterwarnings("ignore")
def test_inputs_of_the_callback_take_precedence(tmp_path: Path) -> None:
    metrics = fit(Net(), tmp_path, ExplorerSummary(inputs=torch.zeros(5, 8)))
    head, row = metrics.read_text().splitlines()[:2]
    assert float(dict(zip(head.split(","), row.split(","), strict=True))["explorer/macs"]) == 160


@pytest.mark.filterwarnings("ignore")
def test_figures_of_guessed_inputs_are_not_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = Net()
    module.example_input_array = None
    head = fit(module, tmp_path, ExplorerSummary()).read_text().splitlines()[0]
    assert {name for name in head.split(",") if "/" in name} == {"explorer/params", "explorer/weight_bytes"}
    assert "set example_input_array" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_cannot_be_analyzed_is_trained_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match="no summary of Net: "):
        fit(Net(fails=True), tmp_path, ExplorerSummary(log=False))
    assert "MACs" not in capsys.readouterr().out
    assert not (tmp_path / "metrics.csv").exists()
