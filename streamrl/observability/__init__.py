"""What a run tells: metrics, logs, spans, pictures, and the first cause of a failure.
It imports `streamrl.system`.
No configuration: callers pass the settings.
"""
