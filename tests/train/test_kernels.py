from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch

from ono.errors import RecipeError
from ono.models.ono import ONO
from ono.models.ono_config import ONOConfig
from ono.models.ono_fused import is_fused, unfusable
from ono.nn import fused_launch
from ono.nn.attention import NystromAttention
from ono.train.kernels import choose_kernels
from ono.train.prepare import cut, new_operator
from ono.train.recipe import Recipe


def test_the_cpu_keeps_plain_kernels(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path)
    recipe = Recipe.from_mapping(tiny.content(data.path))
    operator = new_operator(recipe, cut(data, recipe).train)
    assert not choose_kernels(operator, recipe, torch.device("cpu"))
    wanted = Recipe.from_mapping(tiny.content(data.path, kernels="fused"))
    message = "train.kernels=fused needs a GPU, and this is on cpu; use auto or plain"
    with pytest.raises(RecipeError, match=f"^{message}$"):
        choose_kernels(operator, wanted, torch.device("cpu"))


@pytest.mark.parametrize(
    ("capability", "why"),
    [((7, 5), "compute capability 8.0, and this one has 7.5$"), ((8, 0), None), ((12, 0), None)],
)
def test_an_old_gpu_keeps_plain_kernels(
    capability: tuple[int, int], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found")
    found = fused_launch.missing(torch.device("cuda"))
    assert (found is None) if why is None else re.search(why, found or "")


@pytest.mark.parametrize(("kib", "fits"), [(100, False), (164, True), (228, True)])
def test_little_shared_memory_keeps_plain_kernels_in_fp32(
    kib: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SimpleNamespace(shared_memory_per_multiprocessor=1024 * kib)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found")
    fused_launch.tiles_at_once.cache_clear()
    device = torch.device("cuda")
    try:
        assert fused_launch.missing(device, "bf16") is None
        assert (fused_launch.missing(device, "bf16x6") is None) == fits
        assert fused_launch.long_sum(9, device)["num_stages"] == (3 if fits else 2)
    finally:
        fused_launch.tiles_at_once.cache_clear()


def test_gpus_of_others_keep_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert fused_launch.missing(torch.device("cuda")) == "needs an NVIDIA GPU"


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"width": 96}, "model.width=96"),
        ({"ffn_ratio": 2.0}, "model.ffn_ratio=2.0"),
        ({"lower": {"heads": 4}}, "model.lower.heads=4"),
        ({"lower": {"layers": 2}}, "model.lower.layers=2"),
        ({"eigen": {"norm": "bn", "covariance": "ema"}}, "model.eigen.covariance=ema"),
        ({"eigen": {"measure": "sum"}}, "model.eigen.measure=sum"),
        ({"eigen": {"heads": 16}}, "model.eigen.heads=16"),
        ({"query": "cross"}, "model.query=cross"),
    ],
)
def test_what_the_kernels_cannot_do_is_named(changes: dict[str, object], option: str) -> None:
    assert unfusable(ONOConfig.model_validate(changes)) == option


@pytest.mark.parametrize(
    ("kernels", "attention", "fused"),
    [
        ("auto", "efficient", True),
        ("auto", "linear", True),
        ("fused", "linear", True),
        ("plain", "efficient", False),
    ],
)
def test_blocks_are_fused_with_any_attention_unless_plain_ones_are_asked_for(
    kernels: str, attention: str, fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.dataset(tmp_path)
    content = tiny.content(data.path, kernels=kernels)
    content["model"] = {"name": "ono", "layers": 1, "lower": {"attention": attention, "heads": 8}}
    recipe = Recipe.from_mapping(content)
    operator = new_operator(recipe, cut(data, recipe).train)
    monkeypatch.setattr("ono.train.kernels.missing", lambda device, precision: None)
    assert choose_kernels(operator, recipe, torch.device("cuda")) == fused
    assert isinstance(operator.model, ONO)
    assert (operator.model.flows is not None) == fused


def test_the_packaged_recipes_can_be_fused() -> None:
    for name in ("darcy", "ns2d", "airfoil", "pipe", "elasticity", "plasticity"):
        config = Recipe.load(f"{name}/ono").model.config
        assert isinstance(config, ONOConfig)
        assert unfusable(config) is None, name
        assert is_fused(config.lower), name


@pytest.mark.gpu
@pytest.mark.skipif(not fused_launch.available(), reason="needs a CUDA device and Triton")
def test_a_peer_is_refused(tmp_path: Path) -> None:
    data = tiny.dataset(tmp_path)
    content = tiny.content(data.path, kernels="fused") | {"model": {"name": "transolver"}}
    recipe = Recipe.from_mapping(content)
    operator = new_operator(recipe, cut(data, recipe).train)
    with pytest.raises(RecipeError, match="fused is for ono, and this model is transolver;"):
        choose_kernels(operator, recipe, torch.device("cuda"))


@pytest.mark.parametrize(("major", "has"), [(9, True), (10, False), (12, True)])
def test_a_gpu_with_little_tensor_memory_has_no_kernels_for_landmarks(
    major: int, has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found")
    assert fused_launch.has_landmark_kernels(torch.device("cuda")) == has


@pytest.mark.parametrize(("kernels", "used"), [("auto", True), ("plain", False)])
def test_plain_kernels_are_plain_for_landmarks_too(
    kernels: str, used: bool, tmp_path: Path
) -> None:
    data = tiny.dataset(tmp_path)
    content = tiny.content(data.path, kernels=kernels)
    content["model"] = tiny.MODEL | {"lower": {"attention": "nystrom", "heads": 2}}
    recipe = Recipe.from_mapping(content)
    operator = new_operator(recipe, cut(data, recipe).train)
    choose_kernels(operator, recipe, torch.device("cpu"))
    parts = [part for part in operator.modules() if isinstance(part, NystromAttention)]
    assert [part.kernels for part in parts] == [used, used]
