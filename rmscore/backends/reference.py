"""``reference``: transformers eager, fp32, one row at a time, never padded. The judge of every other engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from rmscore.backends import torch_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rmscore.backends import Settings
    from rmscore.checkpoint import RewardModel
    from rmscore.types import Batch


class Reference:
    """Calls the checkpoint's own class as its author would: ids in, ``logits`` out."""

    padded = False

    def __init__(self, model: RewardModel, settings: Settings) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._module = torch_model.load_module(model, attention="eager")
        self._typed = "token_type_ids" in torch_model.input_names(self._module, causal=model.causal)
        self.record = torch_model.record(self._module, "cpu")

    def score(self, batch: Batch) -> NDArray[np.float32]:
        """Return float32 [rows, objectives], each row computed alone."""
        out = []
        with torch.inference_mode():
            for row in batch.rows:
                inputs = {"input_ids": torch.from_numpy(row.ids)[None]}
                if self._typed:
                    inputs["token_type_ids"] = torch.from_numpy(row.type_ids)[None]
                out.append(self._module(**inputs).logits[0].numpy())
        return np.array(out, np.float32)

    def close(self) -> None:
        """Drop the weights."""
        del self._module


def load(model: RewardModel, settings: Settings) -> Reference:
    """Load the judge; it has one precision and one device, whatever is asked of others."""
    return Reference(model, settings)
