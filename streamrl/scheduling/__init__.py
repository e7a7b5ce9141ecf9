"""Who works next and how much: admission by staleness, capacity, fair shares, autoscaling, placement.
It imports `streamrl.config`.
Every class is pure: no I/O, no Ray, an injected clock.
"""
