"""`explorer machines --measure`: this machine by the name `here`, in the config file that the user has."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import explorer
from explorer.base.errors import Cancelled, Misuse
from explorer.cli.main import main
from explorer.host import processor
from explorer.settings import machines
from explorer.settings.memories import find_memory_machine

LENET = str(Path(__file__).parent.parent.parent.parent / "sample_models" / "lenet.onnx")
MINE = '# mine\n[machine.npu]\npeak_macs = "4T"  # fast\nbandwidth = "100GB/s"\n\n[tile]\nsize = 3  # small\n'
LATER = '\n[machine.old]  # out of order\npeak_macs = "1T"\nbandwidth = "10GB/s"\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("EXPLORER_CONFIG", str(path))
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main([*words]) == code
    out, err = capsys.readouterr()
    return err if code else out


@pytest.mark.parametrize("verb", ["roofline", "plan", "profile"])
def test_here_that_is_not_measured_is_one_line_with_the_command(
    verb: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(capsys, verb, LENET, "--machine", "here", code=2)
    assert line.splitlines() == [
        "explorer: --machine: this machine is not measured; run explorer machines --measure"
    ]
    assert "is not measured: explorer machines --measure" in said(capsys, "machine").replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", MINE + LATER])
def test_this_machine_is_measured_written_listed_and_taken_by_name(
    before: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if before:
        config.write_text(before)
    told = json.loads(said(capsys, "machine", "--measure", "--time-limit", "1", "--json"))
    one, core = told["machines"]
    assert (one["name"], core["name"]) == ("here", "here-core")
    kept = config.read_text()
    assert all(line in kept.splitlines() for line in before.splitlines())
    content = tomllib.loads(kept)
    measured = content["machine"].pop("here")["measured"]
    assert content["machine"].pop("here-core")["memory"]
    if before:
        assert content == tomllib.loads(before)
    for cache in one["measured"]["caches"]:
        if cache["bytes_per_second"] is None:  # which TOML cannot say
            del cache["bytes_per_second"]
    assert one["measured"] == measured
    assert measured["processor"] == processor.name()
    peaks = {peak["dtype"]: peak["macs_per_second"] for peak in measured["peaks"]}
    for dtype, peak in peaks.items():
        of_type = [one["macs_per_second"] for one in measured["kernels"] if one["dtype"] == dtype]
        assert peak == max(of_type)
    here = machines.find_hardware("here")
    assert here.peak_macs == pytest.approx(peaks["float32"], rel=1e-3)
    assert here.bandwidth == pytest.approx(measured["bandwidth"]["bytes_per_second"], rel=1e-3)
    found = {one.name: one for one in machines.list_machines().machines}
    assert found["here"].measured is not None
    assert found["here"].about.startswith(processor.name())
    assert said(capsys, "machines").index("  here ") < said(capsys, "machines").index("  h100 ")
    assert "here: " in said(capsys, "roofline", LENET, "--machine", "here")
    assert "here: " in said(capsys, "plan", LENET, "--machine", "here")
    threads = str(measured["threads"])
    few = ["profile", LENET, "--machine", "here", "--steps", "2", "--threads", threads]
    text = said(capsys, *few)
    assert "Of the roof" in text
    assert "Predicted" in text
    assert "against this run, half of the layers within" in " ".join(text.split())
    told = [json.loads(said(capsys, *few, "--json")) for _ in range(2)]
    predicted = [{one["path"]: one["predicted_seconds"] for one in each["layers"]} for each in told]
    assert predicted[0] == predicted[1], "nothing of the run itself is in the prediction"
    alone = [one["predicted_seconds"] for one in told[0]["layers"] if one["predicted_seconds"]]
    # beside the layers stand changes of layout, which are predicted from what they move
    beside = told[0]["predicted_seconds"] - sum(alone) - measured["call"]["median"]
    assert 0 <= beside < sum(alone)
    assert told[1]["predicted_seconds"] == told[0]["predicted_seconds"]
    refused = said(capsys, "machines", "--measure", code=2)
    assert "there is a machine 'here' already; choose another name, or add --force" in refused
    assert config.read_text() == kept


@pytest.mark.slow
def test_it_is_measured_anew_under_force_and_only_that_machine_changes(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(MINE + LATER + "\n[machine.here]  # by hand\npeak_macs = 1e9\nbandwidth = 1e9\n")
    text = said(capsys, "machines", "--measure", "--force", "--time-limit", "1", "--threads", "1")
    assert "1 thread" in text
    assert "peak, float32" in text
    content = tomllib.loads(config.read_text())
    assert content["machine"].pop("here")["measured"]["threads"] == 1
    core = content["machine"].pop("here-core")
    assert [memory["name"] for memory in core["memory"]][::-1] == [
        *(f"L{level}" for level, _, _ in processor.list_caches()),
        "memory",
    ]
    assert all(
        "measured" in memory["source"] and "by one thread" in memory["source"] for memory in core["memory"]
    )
    sizes = {f"L{level}": size for level, size, _ in processor.list_caches()}
    machine = find_memory_machine("here-core")
    assert {memory.name: memory.size for memory in machine.memories[1:]} == sizes
    assert all(memory.read_bytes_per_cycle for memory in machine.memories)
    assert machine.hardware.clock == 1e9
    assert "copy in memory" in text
    assert "written" in text
    assert content == tomllib.loads(MINE + LATER)
    assert "# fast" in config.read_text()
    config.write_text(config.read_text().replace("threads = 1\n", "threads = 1000\n"))
    told = said(capsys, "profile", LENET, "--machine", "here", "--steps", "2")
    assert (
        "no times are predicted: the machine was measured with other settings (1,000 threads"
        in told.replace("\n", " ")
    )
    assert "Predicted" not in told


def test_who_stops_it_or_names_it_wrongly_has_the_file_as_it_was(config: Path) -> None:
    config.write_text(MINE)
    with pytest.raises(Cancelled):
        explorer.measure_machine(cancel=lambda: True)
    for wrong in (
        {"name": "npu"},
        {"name": "a/b"},
        {"name": "x" * 64},
        {"threads": 100_000},
    ):
        with pytest.raises(Misuse):
            explorer.measure_machine(**wrong)  # type: ignore[arg-type]
    assert config.read_text() == MINE
    assert [path.name for path in config.parent.iterdir()] == [config.name]


@pytest.mark.slow
def test_here_of_another_machine_is_refused_and_so_is_what_was_no_measurement(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explorer.measure_machine(time_limit=0.5)
    kept = config.read_text()
    config.write_text(kept.replace(f'processor = "{processor.name()}"', 'processor = "Another 9000"'))
    line = said(capsys, "roofline", LENET, "--machine", "here", code=2)
    assert "'here' was measured on another machine: Another 9000" in line
    assert "Another 9000" in said(capsys, "machines")
    config.write_text(kept.replace("threads = ", 'threads = "many" #'))
    assert said(capsys, "machines", code=2).count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--threads", "2"],
        ["--time-limit", "3"],
        ["--save", "x", "--machine", "h100", "--threads", "2"],
        ["--measure", "--machine", "h100"],
        ["--measure", "--peak-macs", "4T"],
        ["--measure", "--time-limit", "0"],
    ],
)
def test_options_that_do_not_belong_together_are_one_line(
    words: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "machines", *words, code=2).count("\n") == 1
    assert not config.exists()


def _hundredth(setting: re.Match[str]) -> str:
    return f"{setting[1]} = {float(setting[2]) / 100!r}"


@pytest.mark.slow
def test_what_the_measurement_says_of_a_profile_is_said_there(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    explorer.measure_machine(time_limit=0.5)
    slow = config.read_text()
    for name in ("peak_macs", "bandwidth"):  # the machine's own, which stand before what was measured
        slow = re.sub(rf"(?m)^{name} = .*$", f"{name} = 1000.0", slow, count=1)
    words = ["profile", LENET, "--machine", "here", "--steps", "2"]
    for loaded, said_ in (("true", "was loaded when it was measured (a test)"), ("false", "(Winograd)")):
        text = re.sub(r"(?m)^loaded = .*$", f"loaded = {loaded}", slow)
        config.write_text(re.sub(r"(?m)^load = .*$", 'load = "a test"', text))
        told = " ".join(said(capsys, *words).split())
        assert "layers above 100 % of the roof: " in told, config.read_text()
        assert said_ in told
    config.write_text(re.sub(r"(median|p10|p90|low|high) = ([\d.e-]+)", _hundredth, slow))
    assert "times slower than when it was measured: a matmul of " in " ".join(said(capsys, *words).split())
    (tmp_path / "net.py").write_text(
        "import torch\nnet = lambda: (torch.nn.Linear(4, 4), torch.zeros(1, 4))\n"
    )
    words[1] = f"{tmp_path / 'net.py'}:net"
    assert "the times of a module are not predicted" in " ".join(said(capsys, *words).split())
