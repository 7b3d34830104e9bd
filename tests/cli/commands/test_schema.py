"""`explorer schema`: the JSON Schema of each verb matches its answers, and no key changes unnoticed.

The same answers show that each verb that prints a table offers it as CSV, shortened, and with all digits, and
that no line is wider than a terminal of 60 or 80 columns.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
from rich.cells import cell_len
from rich.console import Console

from explorer.cli.arguments.command import ParsedArgs
from explorer.cli.commands import VERBS
from explorer.cli.main import main
from explorer.cli.output.answer import Answer
from explorer.cli.output.printing import print_answer
from explorer.report.blocks import Block, Table, select_first_rows
from explorer.report.document_schema import build_schema
from explorer.report.document_types import DOCUMENTS, FORMS
from explorer.report.layout import Page
from explorer.report.pieces import split_cell
from tests import answers, documents, manual
from tests.engine.formats.transformers import folders

COMMANDS = [
    "info lenet.onnx",
    "layers lenet.onnx",
    "layers lenet.onnx --columns macs,read --filter op:Conv",
    "layers lenet.onnx --layer conv1",
    "ops lenet.onnx",
    "nodes lenet.onnx",
    "memory lenet.onnx",
    "roofline lenet.onnx --machine a100",
    "sizes bert_tiny.onnx --over sequence=8:16 --dim batch=1",
    "outline lenet.onnx",
    "list .",
    "formats",
    "formats lenet.onnx",
    "weights lenet.onnx --stat var",
    "activations lenet.onnx",
    "values lenet.onnx fc1.weight",
    "values lenet.onnx fc1.weight --map 4x4",
    "graph lenet.onnx -o lenet.txt",
    "plot lenet.onnx -o memory.svg",
    "report lenet.onnx -o lenet.md",
    "compare lenet.onnx mlp_128.onnx",
    "check lenet.onnx --max-macs 1M --max-peak 1",
    "diff lenet.onnx mlp_128.onnx",
    "diff --tree lenet.onnx mlp_128.onnx",
    "verify mlp_128.onnx mlp_128.onnx",
    "blame mlp_128.onnx mlp_128.onnx",
    "evaluate jsc_tiny.onnx --data jets_test.npz",
    "tile mlp_128.onnx",
    "tile mlp_128.onnx --quantize int8 -o tiled.onnx",
    "plan mlp_128.onnx --machine a100",
    "plan mlp_128.onnx --machine a100 --steps 2",
    "settings lenet.onnx --tile 32",
    "settings lenet.onnx --formats --to int8",
    "sweep mlp_128.onnx --tile 16,32 --machine a100",
    "sweep mlp_128.onnx --quantize int8 --draws 1",
    "quantize mlp_128.onnx --to int8",
    "quantize lenet.onnx --to int8 -o int8.onnx",
    "fold mobilenet_small.onnx",
    "fold jsc_tiny.onnx -o folded.onnx",
    "infer lenet.onnx",
    "passes --passes passes.py --trust",
    "apply lenet.onnx split-bias -o split.onnx --passes passes.py --trust",
    "edit lenet.onnx -o renamed.onnx --rename input=image",
    "rebatch lenet.onnx 8 -o lenet_8.onnx",
    "extract lenet.onnx --layer conv1 -o conv1.onnx",
    "split lenet.onnx -n 2",
    "split lenet.onnx -n 2 -o stages --machine a100",
    "make linear:8x8x8 -o product.onnx",
    "profile mlp_128.onnx --steps 2 --warmup 0",
    "profile bert_tiny.onnx --dim sequence=8 --batch 1,2 --steps 2 --warmup 0 --machine a100",
    "profile mlp_128.onnx lenet.onnx --steps 2 --warmup 0",
    "training lenet.onnx --batch 2",
    "map lenet.onnx --machine gemmini --capacity 32K:64K",
    "emit linear_32x64x128.onnx --machine gemmini -o code",
    "machines",
    "doctor",
    "cache",
    *(
        pytest.param(words, marks=pytest.mark.slow)
        for words in (
            "pipeline stages --micro-batches 2",
            "train jsc.py:jsc_tiny --trust --data jets_train.npz --epochs 1",
            "convert lenet.onnx -o lenet.pt",
            "ops --fx jsc.py:jsc_tiny --trust",
            "layers jsc.py:jsc_tiny --style torchinfo --compare",
            "layers jsc.py:jsc_tiny --style tree --compare",
            "serving llama",
            "serving llama llama",
            "serving llama --sweep",
            "decode llama --past 8",
        )
    ),
]
"""Commands that are called on small models, at least one for each verb with `--json`."""

ELSEWHERE = {"history"}
"""Verbs that need a saved session; tests/session/test_history.py validates their answers."""

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the sample models, where output files are written."""
    for path in (manual.ROOT / "sample_models").iterdir():
        if path.suffix in (".onnx", ".npz", ".py"):
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_verb_with_json_has_a_schema_and_a_command_here() -> None:
    verbs = {verb for verb, command in VERBS.items() if "--json" in command.options}
    assert set(DOCUMENTS) == verbs
    assert set(FORMS) < verbs
    commands = {
        str(command.values[0] if hasattr(command, "values") else command).split()[0] for command in COMMANDS
    }
    assert commands == verbs - ELSEWHERE


TABLE = {"--csv", "--top", "--exact"}
"""Options of each command that prints a table."""

ROUNDED = re.compile(r"(?:[<>]= |~ )?[\d,.]+ (?:[kMGT]|[KMGT]iB)")


def check_width(blocks: Sequence[Block], width: int) -> None:
    """Check that no line on a terminal is wider than it, or padded."""
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    with terminal.capture() as capture:
        terminal.print(Page(blocks, fit=True), crop=False, soft_wrap=True)
    lines = capture.get().split("\n")
    assert [line for line in lines if cell_len(line) > width or line != line.rstrip()] == []


def check_table(verb: str, answer: Answer, args: ParsedArgs, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a table can be had as CSV, shortened, and with all digits."""
    args.json = args.quiet = False
    blocks = answer.page()
    takes_table = set(VERBS[verb].options) >= TABLE
    tables = [block for block in blocks if isinstance(block, Table)]
    for width in (60, 80):
        check_width(blocks, width)
    titled = [table for table in tables if any(column.title for column in table.columns)]
    assert takes_table or not titled
    if not takes_table or not (answer.rows or answer.csv):
        return
    args.csv = True
    if answer.pieces is not None:
        return  # such an answer can be printed once only; test_outline.py tests its table
    print_answer(answer, args)
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head
    assert {len(row) for row in rows} <= {len(head)}
    args.top = 1
    print_answer(answer, args)
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [head, *rows[:1]]
    shortened = [block for block in select_first_rows(blocks, 1) if isinstance(block, Table) and block.rows]
    assert all(len(table.rows) == 1 for table in shortened if any(column.title for column in table.columns))
    cells = [cell for table in titled for row in table.rows for cell in row]
    texts = ["".join(text for text, _ in split_cell(cell, exact=True)) for cell in cells]
    assert [text for text in texts if ROUNDED.fullmatch(text.strip())] == []


@pytest.mark.parametrize("words", COMMANDS)
def test_the_answer_of_each_verb_matches_its_schema(
    words: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[tuple[Answer, ParsedArgs]] = []

    def keep(answer: Answer, args: ParsedArgs) -> None:
        printed.append((answer, args))
        print_answer(answer, args)

    if "stages" in words.split()[:2]:
        assert main(["split", "lenet.onnx", "-n", "2", "-o", "stages", "--quiet"]) == 0
    if "llama" in words:
        folders.folder(folder / "llama", LLAMA, folders.llama(2, 64, 96, 128, 32))
    capsys.readouterr()
    monkeypatch.setattr("explorer.cli.main.print_answer", keep)
    assert main([*words.split(), "--json", "--quiet"]) in (0, 1)
    verb = words.split()[0]
    answers.check(verb, json.loads(capsys.readouterr().out))
    check_table(verb, *printed[0], capsys)


def test_schema_prints_a_schema_that_allows_new_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "info"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == build_schema("info")
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "additionalProperties" not in schema
    assert schema["properties"]["totals"]["$ref"] == "#/$defs/Totals"
    assert {"macs", "params"} <= set(schema["$defs"]["Totals"]["required"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema_version": 1, "tool": "explorer"}, schema)


def test_schema_lists_the_verbs_and_refuses_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert {line.split()[0] for line in lines} == set(DOCUMENTS)
    assert main(["schema", "quantise"]) == 2
    error = capsys.readouterr().err
    assert "'quantise' is not a verb with --json" in error
    assert "did you mean 'quantize'?" in error


def test_no_key_of_the_contract_changes_unnoticed() -> None:
    golden = documents.GOLDEN.read_text(encoding="utf-8")
    assert documents.golden() == golden, (
        "the contract changed: python -m tests.documents writes the golden file"
    )
