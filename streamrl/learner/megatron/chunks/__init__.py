"""Model chunks of one rank on megatron-core: layers, what is before the first, and the head behind the last. It imports
`streamrl.learner`, megatron, torch and transformers. Plans of weights, optimizers and pipelines are not known here.
"""
