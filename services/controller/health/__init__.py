"""Watches the parts of a run: deaths, stalls, a full disk, prompts that always fail; and writes the reports.
It imports `streamrl.services.actors`, `streamrl.services.controller`, `streamrl.services.run` and `streamrl`.
No part is started or replaced here: the keepers beside this folder do that.
"""
