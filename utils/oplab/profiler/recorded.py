"""The training steps that the course keeps: profiled on a named GPU, read where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from oplab import models
from oplab.profiler.profile import Profile
from oplab.profiler.run import profile

FOLDER = Path(__file__).parent.parent / "recordings"

# What people read, in one place.
TEXT = {
    "gpt2": "GPT-2 small, batch 8 x 1024 tokens, bf16 weights, AdamW",
    "resnet50": "ResNet-50, batch 32 at 224 x 224, bf16 weights, NCHW, SGD with momentum",
    "absent": "there is no recorded profile {name!r}; there are: {have}",
}


def gpt2(device: str) -> Profile:
    model = models.GPT().to(device, torch.bfloat16)
    tokens = torch.randint(0, 50257, (8, 1025), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return profile(models.language_loss, model, tokens, optimizer=optimizer, title=TEXT["gpt2"])


def resnet50(device: str) -> Profile:
    model = models.ResNet50().to(device, torch.bfloat16)
    images = torch.randn(32, 3, 224, 224, device=device, dtype=torch.bfloat16)
    labels = torch.randint(0, 1000, (32,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return profile(models.image_loss, model, images, labels, optimizer=optimizer, title=TEXT["resnet50"])


STEPS: dict[str, Callable[[str], Profile]] = {"gpt2": gpt2, "resnet50": resnet50}


def record(folder: Path, device: str = "cuda") -> list[Path]:
    """Profile every step and write ``folder/profile-<name>.json``."""
    paths = []
    for name, run in STEPS.items():
        paths.append(folder / f"profile-{name}.json")
        run(device).save(paths[-1])
        if device == "cuda":
            torch.cuda.empty_cache()
    return paths


def load(name: str, machine: str = "nvidia-h200") -> Profile:
    """A recorded profile: "gpt2" or "resnet50". ValueError names those there are."""
    path = FOLDER / machine / f"profile-{name}.json"
    if not path.exists():
        have = ", ".join(sorted(p.stem.removeprefix("profile-") for p in FOLDER.glob(f"{machine}/profile-*.json")))
        raise ValueError(TEXT["absent"].format(name=name, have=have or "none"))
    return Profile.load(path)
