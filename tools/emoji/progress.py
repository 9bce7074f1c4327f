"""What every training loop here shares: a budget in seconds, checkpoints, and an average of the weights."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from torch import nn

SAVE_EVERY_S = 120.0


class Run:
    """A training run that can stop anywhere and go on from its last checkpoint.

    The learning rate follows the share of `budget_s` that was used: a short rise, then a cosine to zero. Time counts
    only while the process had the processor, so a run on a busy or paused machine trains as long as on an idle one.
    """

    def __init__(self, file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, budget_s: float) -> None:
        self.file, self.model, self.optimizer, self.budget_s = file, model, optimizer, budget_s
        self.average = {key: value.detach().clone() for key, value in model.state_dict().items()}
        self.step, self.used_s, self._since = 0, 0.0, time.process_time()
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._saved_s, self._said_s = 0.0, 0.0
        self._loss = math.nan
        if file.exists():
            self._resume(torch.load(file, weights_only=True))

    def _resume(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average, self.step, self.used_s = state["average"], state["step"], state["used_s"]
        self._saved_s = self._said_s = self.used_s

    @property
    def over(self) -> bool:
        return self.used_s >= self.budget_s

    def before(self) -> None:
        """Set the learning rate of the step that follows."""
        share = min(1.0, self.used_s / self.budget_s)
        factor = min(1.0, (self.step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * share))
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    @torch.no_grad()
    def after(self, loss: float) -> None:
        """Count a step, fold its weights into the average, save and say how it goes now and then."""
        self.step += 1
        decay = min(0.998, (1 + self.step) / (20 + self.step))
        for key, value in self.model.state_dict().items():
            self.average[key].lerp_(value, 1 - decay)
        now = time.process_time()
        self.used_s, self._since = self.used_s + now - self._since, now
        self._loss = loss if math.isnan(self._loss) else 0.98 * self._loss + 0.02 * loss
        if self.used_s - self._said_s > 15:
            self._said_s = self.used_s
            print(f"{self.used_s:7.0f} s  step {self.step:6d}  loss {self._loss:.4f}", flush=True)
        if self.over or self.used_s - self._saved_s > SAVE_EVERY_S:
            self._saved_s = self.used_s
            self.save()

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "step": self.step,
            "used_s": self.used_s,
        }
        torch.save(state, self.file.with_suffix(".new"))
        self.file.with_suffix(".new").replace(self.file)


def averaged(file: Path, model: nn.Module) -> nn.Module:
    """`model` with the averaged weights of a checkpoint, ready to use."""
    model.load_state_dict(torch.load(file, weights_only=True)["average"])
    return model.eval()
