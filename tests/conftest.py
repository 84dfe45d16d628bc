"""Check named shapes while testing: every annotated call in ono is verified at run time.

The hook breaks torch.compile, so compile tests run in processes of their own with
ONO_TEST_COMPILE set.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Generator

import pytest
import torch

# A shell lets what it starts in the background ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a GPU kernels are interpreted, which Triton must know when they are loaded.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# GPU kernels are not Python: loaded before the hook, it leaves them alone.
with contextlib.suppress(ImportError):
    for name in (
        "physics.block_thomas",
        "nn.tiles",
        "nn.products",
        "nn.fused",
        "nn.ends",
        "nn.feed_forward",
        "nn.lower",
        "nn.attended",
        "nn.between_landmarks",
        "nn.landmark_attention",
        "nn.mixing",
        "nn.upper",
        "train.adamw",
        "train.relative_error",
        "train.tally",
    ):
        importlib.import_module(f"ono.{name}_triton")

if not os.environ.get("ONO_TEST_COMPILE"):
    from jaxtyping import install_import_hook

    install_import_hook("ono", "beartype.beartype")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """End a process that has lost its GPU: every test behind this one would fail as well."""
    report = yield
    if call.excinfo is not None and torch.cuda.is_initialized():
        from ono.experiments.gpu import device_is_lost

        if device_is_lost():
            where = sys.__stderr__ or sys.stderr
            where.write(f"{item.nodeid} lost the GPU\n{report.longreprtext}\n")
            if "PYTEST_XDIST_WORKER" in os.environ:
                os._exit(1)  # another worker takes its place
            pytest.exit(f"{item.nodeid} lost the GPU", returncode=1)
    return report
