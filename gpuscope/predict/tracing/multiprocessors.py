"""The multiprocessors that kernels find on a GPU, by its compute capability.

The numbers are NVIDIA's: those of multiprocessors from the data sheets of the cards, those of
threads also from ``CUDA_MAX_THREADS_PER_SM`` in torch's own headers.
"""

from __future__ import annotations

HOPPER = (132, 2048)
BY_ARCHITECTURE = {
    (7, 0): (80, 2048),
    (7, 5): (40, 1024),
    (8, 0): (108, 2048),
    (8, 6): (84, 1536),
    (8, 9): (128, 1536),
    (9, 0): HOPPER,
    (10, 0): (148, 2048),
    (12, 0): (170, 1536),
}
"""The multiprocessors of the largest common GPU of a compute capability, and threads on each."""


def of_gpu(architecture: tuple[int, int]) -> tuple[int, int]:
    """Return the number of multiprocessors of such a GPU, and of threads on each."""
    return BY_ARCHITECTURE.get(architecture, HOPPER)
