"""NVIDIA's library as the process agent asks it, by a stand-in that a C compiler makes: two GPUs, one says how busy it is."""

import shutil
import subprocess
from pathlib import Path

import pytest

from allmende.agent.process.machine import node_of
from allmende.agent.process.nvml import Nvml
from allmende.agent.sdk.backend import NodeState
from allmende.chassis.errors import Misconfigured

COMPILER = shutil.which("cc")
SOURCE = """
#include <string.h>
typedef struct { unsigned int gpu, memory; } utilization;
static int devices[2];
int nvmlInit_v2(void) { return START; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) { *handle = &devices[index]; return 0; }
int nvmlDeviceGetName(void *handle, char *name, unsigned int length) { strncpy(name, "NVIDIA H100 80GB HBM3", length); return 0; }
int nvmlDeviceGetUtilizationRates(void *handle, utilization *found) {
    if (handle == &devices[1]) return 3;
    found->gpu = 87; found->memory = 20; return 0;
}
"""

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler here to make a stand-in for NVIDIA's library")


def library(folder: Path, start: int = 0) -> str:
    source, made = folder / "nvml.c", folder / f"nvml{start}.so"
    source.write_text(SOURCE.replace("START", str(start)))
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", str(made), str(source)], check=True, timeout=50)
    return str(made)


@needs_compiler
def test_the_gpus_of_a_machine_are_found_and_asked_how_busy_they_are(tmp_path: Path) -> None:
    nvml = Nvml(library(tmp_path))
    assert [(gpu.number, gpu.model) for gpu in nvml.gpus()] == [(0, "NVIDIA H100 80GB HBM3"), (1, "NVIDIA H100 80GB HBM3")]
    assert [nvml.busy_percent(number) for number in (0, 1, 2)] == [87, None, None]
    assert node_of("Node.7", None, nvml) == NodeState("node-7", 2, 2, "nvidia-h100-80gb-hbm3")
    assert node_of("n7", 1, nvml).installed_gpus == 1, "what the setting says counts"
    nvml.close()


@needs_compiler
def test_a_library_whose_driver_does_not_answer_is_as_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="error 9"):
        Nvml(library(tmp_path, 9))


def test_a_machine_without_gpus_must_be_told_how_many_it_has() -> None:
    with pytest.raises(Misconfigured, match="ALLMENDE_PROCESS_GPUS"):
        node_of("n1", None, None)
    assert node_of("n1", 4, None) == NodeState("n1", 4, 4)
