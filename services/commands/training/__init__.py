"""The verbs that train a model on preference pairs, outside of a run.
It imports `streamrl`.
No loop of a training: that is `streamrl.learner.supervised`.
"""
