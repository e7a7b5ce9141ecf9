"""The pieces of the simulator: its settings and report, its books, and the policy that it drives.
It imports `streamrl.scheduling`.
No model, no process and no clock of the machine.
"""
