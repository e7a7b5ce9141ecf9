"""The torch engine: `TorchEngine` samples from Qwen2, Qwen3 and Llama models in process, on a CPU or a GPU.
It imports `streamrl.engines`, `streamrl.scheduling`, `streamrl.models` and `streamrl.system`.
No text, no group, no reward, and no configuration: it is given numbers.
"""

from streamrl.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
