"""Runs another mapper once, in an environment that has it: `python mappers.py zigzag|scalesim FOLDER M K N`.

It imports nothing of this program, so that it runs in an environment of its own. It prints JSON: the seconds
of the work without imports, and the figure of the tool.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import resources
from pathlib import Path

ZIGZAG_WORKLOAD = """
- id: 0
  operator_type: Gemm
  equation: O[d0][d1]+=I[d0][d2]*W[d2][d1]
  dimension_relations: []
  loop_dims: [D0, D1, D2]
  loop_sizes: [{M}, {N}, {K}]
  operand_precision: {{W: 8, I: 8, O: 32, O_final: 32}}
  operand_source: {{I: 0, W: 0}}
"""

SCALESIM_CONFIG = """[general]
run_name = run
[architecture_presets]
ArrayHeight: 32
ArrayWidth: 32
IfmapSramSzkB: 1024
FilterSramSzkB: 1024
OfmapSramSzkB: 1024
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Bandwidth: 32
Dataflow: os
MemoryBanks: 1
ReadRequestBuffer: 32
WriteRequestBuffer: 32
[layout]
IfmapCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterCustomLayout: False
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: USER
UseRamulatorTrace: False
"""


def zigzag(folder: Path, sizes: list[int]) -> dict[str, float]:
    """Least energy of gemm_l1 over all orders of its loops: picojoules of its memory L1."""
    from zigzag import api  # type: ignore[import-not-found]

    inputs = resources.files("zigzag") / "inputs"
    workload, mapping = folder / "workload.yaml", folder / "mapping.yaml"
    workload.write_text(ZIGZAG_WORKLOAD.format(**dict(zip("MKN", sizes, strict=True))))
    head, _, rest = (inputs / "mapping" / "gemm_l1.yaml").read_text().partition("  temporal_ordering:\n")
    mapping.write_text(head + rest[rest.index("  memory_operand_links") :])
    start = time.perf_counter()
    api.get_hardware_performance_zigzag(
        str(workload),
        str(inputs / "hardware" / "gemm_l1.yaml"),
        str(mapping),
        opt="energy",
        dump_folder=str(folder / "dump"),
        loma_show_progress_bar=False,
    )
    seconds = time.perf_counter() - start
    outputs = json.loads((folder / "dump" / "Layer0_complete.json").read_text())["outputs"]
    levels = outputs["energy"]["memory_energy_breakdown_per_level"]
    return {"seconds": seconds, "figure": float(levels["O"][1] + levels["I"][0] + levels["W"][0])}


def scalesim(folder: Path, sizes: list[int]) -> dict[str, float]:
    """Cycles of one matmul on a 32 x 32 array with stationary outputs."""
    from scalesim.scale_sim import scalesim as Simulator  # type: ignore[import-not-found]

    m, k, n = sizes
    config, topology = folder / "scale.cfg", folder / "gemm.csv"
    config.write_text(SCALESIM_CONFIG)
    topology.write_text(f"Layer, M, N, K,\ngemm, {m}, {n}, {k},\n")
    layout = folder / "layout.csv"
    layout.write_text("Layer name,\n" + "gemm," + "1," * 22 + "\n")
    simulator = Simulator(
        save_disk_space=True,
        verbose=False,
        config=str(config),
        topology=str(topology),
        layout=str(layout),
        input_type_gemm=True,
    )
    start = time.perf_counter()
    simulator.run_scale(top_path=str(folder))
    seconds = time.perf_counter() - start
    report = next(folder.rglob("COMPUTE_REPORT.csv")).read_text().splitlines()
    names = [name.strip() for name in report[0].split(",")]
    cells = [cell.strip() for cell in report[1].split(",")]
    return {"seconds": seconds, "figure": float(cells[names.index("Total Cycles")])}


if __name__ == "__main__":
    tool, where, *numbers = sys.argv[1:]
    run = {"zigzag": zigzag, "scalesim": scalesim}[tool]
    print(json.dumps(run(Path(where), [int(number) for number in numbers])))
