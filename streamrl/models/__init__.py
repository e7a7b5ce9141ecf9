"""Models and tokenizers as Hugging Face folders. Only `load` and `export` need torch."""
