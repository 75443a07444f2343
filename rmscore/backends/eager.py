"""``eager``: transformers in PyTorch eager mode, padded batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rmscore.backends import torch_model
from rmscore.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from rmscore.backends import Settings
    from rmscore.checkpoint import RewardModel
    from rmscore.types import Batch


class Eager:
    """A PyTorch module fed with padded batches; ``wrap`` may replace it by a compiled one."""

    padded = True

    def __init__(
        self,
        model: RewardModel,
        settings: Settings,
        wrap: Callable[[torch.nn.Module], Callable[..., torch.Tensor]] | None = None,
    ) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        if settings.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = settings.precision == "tf32"
            torch.backends.cudnn.allow_tf32 = settings.precision == "tf32"
        torch_model.keep_pages()
        module = torch_model.load_module(model, precision=settings.precision, device=settings.device)
        self.record = torch_model.record(module, settings.device)
        self._device = settings.device
        self._names = torch_model.input_names(module, causal=model.causal)
        scorer = torch_model.RewardModule(module, causal=model.causal)
        self._forward = wrap(scorer) if wrap else scorer

    def score(self, batch: Batch) -> NDArray[np.float32]:
        """Return float32 [rows, objectives]."""
        arrays = batch.arrays()
        inputs = {name: torch.from_numpy(arrays[name]).to(self._device) for name in self._names}
        try:
            with torch.inference_mode():
                scores: NDArray[np.float32] = self._forward(**inputs).float().cpu().numpy()
        except RuntimeError as error:  # out of memory among them
            reason = " ".join(str(error).split())[:240]
            raise BackendError(
                f"PyTorch failed on {len(batch)} rows of up to {batch.longest} tokens: {reason}; try smaller batches"
            ) from error
        return scores

    def close(self) -> None:
        """Drop the weights and give GPU memory back."""
        del self._forward
        if self._device == "cuda":
            torch.cuda.empty_cache()


def load(model: RewardModel, settings: Settings) -> Eager:
    """Load a checkpoint for eager scoring."""
    return Eager(model, settings)
