"""What a configuration needs: lengths, bytes, GPUs, the facts of its model, against what the machine has.
It imports `streamrl.config`, `streamrl.observability` and `streamrl.storage`.
Only `machine`, `model_facts` and `model_of` read the system or a file. Nothing loads a model.
"""
