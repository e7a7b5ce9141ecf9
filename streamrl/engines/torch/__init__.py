"""The torch engine: `TorchEngine` samples from Qwen2, Qwen3 and Llama models in process, on CPU or CUDA."""

from streamrl.engines.torch.engine import TorchEngine

__all__ = ["TorchEngine"]
