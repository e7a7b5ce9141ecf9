"""The command line: it parses, delegates and prints.
It imports `streamrl.services.commands`, `streamrl.services.inspect`, `streamrl.services.run`,
`streamrl.services.storage`, `streamrl.config` and `streamrl.system`.
No work of a command: `streamrl.services.commands` has it.
"""
