"""Machine presets: machines that `--machine` knows by name, with figures from public datasheets.

Peak rates are dense, without sparsity, for the number type in the preset. A machine is faster with narrower
types and slower with wider types. `peak_macs` repeats the FLOPS of the datasheet, and its parser halves them,
because a peak rate counts multiply-accumulates. If the datasheet gives lanes, cores and clock instead,
`macs_per_cycle` is lanes x cores.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class PresetRow(Struct, frozen=True):
    """A preset machine.

    Attributes:
        name: Name for `--machine`.
        about: Description of the machine.
        dtype: Number type of the peak rate.
        settings: Settings with the keys of the config file.
        source: Datasheet of the figures.
        memory: Memories from the outermost in, with the keys of the config file. Empty if the datasheet
            describes none.
    """

    name: str
    about: str
    dtype: str
    settings: Mapping[str, str | float]
    source: str
    memory: tuple[Mapping[str, str | float], ...] = ()


def _preset(name: str, about: str, dtype: str, peak: str, bandwidth: str, source: str) -> PresetRow:
    """Creates the preset of a machine with only a peak rate and a bandwidth."""
    return PresetRow(name, about, dtype, {"peak_macs": peak, "bandwidth": bandwidth}, source)


PRESETS: tuple[PresetRow, ...] = (
    _preset("a100", "NVIDIA A100 80GB SXM", "bfloat16", "312 TFLOPS", "2039 GB/s", "NVIDIA A100 datasheet"),
    _preset("h100", "NVIDIA H100 SXM", "bfloat16", "989.4 TFLOPS", "3.35 TB/s",
         "NVIDIA H100 datasheet, Hopper white paper"),
    _preset("h200", "NVIDIA H200 SXM", "bfloat16", "989.4 TFLOPS", "4.8 TB/s",
         "NVIDIA H200 datasheet; cores as of H100"),
    _preset("b200", "NVIDIA B200, one of the 8 of a DGX B200", "float8", "4.5 PFLOPS", "8 TB/s",
         "NVIDIA DGX B200 datasheet: 72 PFLOPS with sparsity, 64 TB/s"),
    _preset("l4", "NVIDIA L4", "float16", "121 TFLOPS", "300 GB/s", "NVIDIA L4 datasheet: 242 with sparsity"),
    _preset("orin", "NVIDIA Jetson AGX Orin 64GB, its GPU", "int8", "85 TFLOPS", "204.8 GB/s",
         "Jetson AGX Orin technical brief: 170 TOPS with sparsity"),
    _preset("tpu-v4", "Google TPU v4, a chip", "bfloat16", "275 TFLOPS", "1200 GB/s",
         "Google Cloud TPU v4 page"),
    _preset("tpu-v5p", "Google TPU v5p, a chip", "bfloat16", "459 TFLOPS", "2765 GB/s",
         "Google Cloud TPU v5p page"),
    _preset("edge-tpu", "Coral M.2 accelerator; bytes over PCIe", "int8", "4 TFLOPS", "500 MB/s",
         "Coral M.2 Accelerator datasheet: PCIe Gen2 x1"),
    _preset("m1", "Apple M1, its GPU of 8 cores", "float32", "2.6 TFLOPS", "68.25 GB/s",
         "Apple newsroom, November 2020; LPDDR4X-4266 on 128 bits"),
    _preset("m1-max", "Apple M1 Max, its GPU of 32 cores", "float32", "10.4 TFLOPS", "400 GB/s",
         "Apple newsroom, October 2021"),
    _preset("m2", "Apple M2, its GPU of 10 cores", "float32", "3.6 TFLOPS", "100 GB/s",
         "Apple newsroom, June 2022"),
    PresetRow("epyc-9654", "AMD EPYC 9654: 96 cores x 16 lanes at base clock, 12 x DDR5-4800", "float32",
              {"macs_per_cycle": 1536, "clock": "2.4 GHz", "bandwidth": "460.8 GB/s"},
              "AMD EPYC 9654 product page; Zen 4 optimization guide"),
    PresetRow("ryzen-7840u", "AMD Ryzen 7 7840U: 8 cores x 16 lanes at base clock, LPDDR5X-7500", "float32",
              {"macs_per_cycle": 128, "clock": "3.3 GHz", "bandwidth": "120 GB/s"},
              "AMD Ryzen 7 7840U product page; Zen 4 optimization guide"),
    PresetRow("pi5", "Raspberry Pi 5: 4 cores x 8 lanes, LPDDR4X-4267 on 32 bits", "float32",
              {"macs_per_cycle": 32, "clock": "2.4 GHz", "bandwidth": "17.068 GB/s"},
              "Raspberry Pi 5 product brief; Cortex-A76 optimization guide"),
    PresetRow("tpu-v1", "Google TPU v1: 256 x 256 array, weights stationary", "int8",
              {"array": "256x256", "clock": "700 MHz", "bandwidth": "34 GB/s", "unit": "1x256x256"},
              "Jouppi et al., ISCA 2017",
              ({"name": "DRAM", "bytes_per_cycle": 48.5714285714},
               {"name": "unified buffer", "size": "24 MiB", "holds": "A"},
               {"name": "weight FIFO", "size": "256 KiB", "holds": "B", "buffers": 2},
               {"name": "accumulators", "size": "4 MiB", "holds": "C", "buffers": 2})),
    PresetRow("gemmini", "Gemmini's default: 16 x 16 array, scratchpad and accumulator", "int8",
              {"array": "16x16", "clock": "1 GHz", "bytes_per_cycle": 16, "unit": "16x16x16"},
              "Genc et al., DAC 2021; default configuration of the generator",
              ({"name": "DRAM", "bytes_per_cycle": 16},
               {"name": "scratchpad", "size": "256 KiB", "holds": "A B", "buffers": 2},
               {"name": "accumulator", "size": "64 KiB", "holds": "C"})),
    PresetRow("edge-npu", "an NPU for the edge: 64 x 64 array, 1 MiB, 16 bytes a cycle (invented)", "int8",
              {"array": "64x64", "clock": "1 GHz", "bytes_per_cycle": 16, "unit": "64x64x64"},
              "by definition",
              ({"name": "DRAM", "bytes_per_cycle": 16},
               {"name": "scratchpad", "size": "1 MiB", "buffers": "A=2 B=2 C=1 out=1"})),
    PresetRow("aie-ml", "AMD AIE-ML core: 256 MACs a cycle, 64 KiB", "int8",
              {"macs_per_cycle": 256, "clock": "1 GHz", "bytes_per_cycle": 16, "unit": "4x8x8"},
              "AMD AM020: AIE-ML architecture manual; two streams of 64 bits each way",
              ({"name": "stream", "read_bytes_per_cycle": 16, "write_bytes_per_cycle": 16},
               {"name": "data memory", "size": "64 KiB", "buffers": "A=2 B=2 C=1 out=2"})),
    PresetRow("h100-sm", "one SM of NVIDIA H100 SXM, with its share of HBM", "bfloat16",
              {"macs_per_cycle": 2048, "clock": "1.83 GHz", "bytes_per_cycle": 13.87, "unit": "64x16x8"},
              "NVIDIA H100 datasheet, Hopper tuning guide: 227 KiB shared memory, 256 KiB registers",
              ({"name": "HBM", "bytes_per_cycle": 13.87},
               {"name": "shared memory", "size": 232448, "holds": "A B", "buffers": 4},
               {"name": "registers", "size": "256 KiB", "holds": "C"})),
    PresetRow("eyeriss", "Eyeriss: 12 x 14 cells and the global buffer, no registers", "int16",
              {"macs_per_cycle": 168, "clock": "200 MHz", "bytes_per_cycle": 2.4, "unit": "12x1x14"},
              "Chen et al., JSSC 2017: 168 cells; not looked up: 108 KiB, 200 MHz, 64 bits at 60 MHz to DRAM",
              ({"name": "DRAM", "bytes_per_cycle": 2.4},
               {"name": "global buffer", "size": "108 KiB", "buffers": 2})),
    PresetRow("zen4-core", "a laptop core, not measured: AMD Ryzen 7 7840U, L3 and DRAM to itself", "float32",
              {"macs_per_cycle": 16, "clock": "3.3 GHz", "bytes_per_cycle": 36.3636363636, "unit": "6x1x16"},
              "AMD Ryzen 7 7840U product page; Zen 4 cache ways; not looked up: bytes a cycle of the caches",
              ({"name": "DRAM", "bytes_per_cycle": 36.3636363636},
               {"name": "L3", "size": "16 MiB", "ways": 16, "bytes_per_cycle": 32},
               {"name": "L2", "size": "1 MiB", "ways": 8, "bytes_per_cycle": 32},
               {"name": "L1", "size": "32 KiB", "ways": 8, "read_bytes_per_cycle": 64,
                "write_bytes_per_cycle": 32})),
    PresetRow("array-64", "a systolic array of 64 x 64 cells, 64 bytes a cycle (invented)", "int8",
              {"array": "64x64", "clock": "1 GHz", "bytes_per_cycle": 64}, "by definition"),
)  # fmt: skip
"""Presets in the order in which they are listed."""


class DeviceRow(Struct, frozen=True):
    """Memory and links of a machine that can be one of several devices.

    Attributes:
        memory: Bytes of main memory.
        links: Bytes per second to other devices, in one direction, or None if the vendor gives none.
        source: Datasheet of the figures.
    """

    memory: int
    links: float | None
    source: str


DEVICES: Mapping[str, DeviceRow] = {
    "a100": DeviceRow(80 * 10**9, 300e9, "NVIDIA A100 datasheet: NVLink 600 GB/s, both ways together"),
    "h100": DeviceRow(80 * 10**9, 450e9, "NVIDIA H100 datasheet: NVLink 900 GB/s, both ways together"),
    "h200": DeviceRow(141 * 10**9, 450e9, "NVIDIA H200 datasheet: NVLink 900 GB/s, both ways together"),
    "b200": DeviceRow(180 * 10**9, 900e9, "NVIDIA DGX B200 datasheet: 1,440 GB and 14.4 TB/s of 8"),
    "l4": DeviceRow(24 * 10**9, 32e9, "NVIDIA L4 datasheet: PCIe Gen4 x16, 64 GB/s both ways together"),
    "orin": DeviceRow(64 * 10**9, None, "Jetson AGX Orin technical brief"),
    "tpu-v4": DeviceRow(32 * 2**30, None, "Google Cloud TPU v4 page"),
    "tpu-v5p": DeviceRow(95 * 2**30, None, "Google Cloud TPU v5p page"),
}
"""Devices by the name of their preset."""
