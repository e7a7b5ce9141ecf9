"""The command line: it parses, delegates and prints."""
