"""The command line: it parses, delegates and prints.
It imports `services.commands`, `services.inspect`, `services.run`, `streamrl.config` and `streamrl.system`.
No work of a command: `services.commands` has it.
"""
